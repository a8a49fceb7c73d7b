"""``data prune``: no byte of what went is left, in either database, its log or the search index."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture import schema
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.search import SearchIndex
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system

WORDS, KEPT = "Rumpelstiltskin", "Thumbelina"


async def say(system: ServingSystem, words: str) -> str:
    engine = system.engine
    assert isinstance(engine, ScriptedEngine)
    engine.say(f"I know {words}. " * 200)
    headers = {"authorization": f"Bearer {system.keys.key_of('default')}"}
    app = httpx.ASGITransport(system.app())
    async with httpx.AsyncClient(transport=app, base_url="http://test", headers=headers) as client:
        body = {"model": "scripted", "messages": [{"role": "user", "content": f"Who is {words}?"}]}
        turn = (await client.post("/v1/chat/completions", json=body)).json()["id"]
        await client.post("/v1/feedback", json={"id": turn, "rating": "down", "text": f"say {words} less"})
    await system.gateway.drain()
    ledgers = system.ledgers
    ledgers.learn.pull([], [event for event in ledgers.serve.events_of(turn) if event.kind == "feedback"])
    for seq, turn_id in ledgers.policies.pending(10):
        judged = ledgers.policies.judged(turn_id)
        assert judged is not None
        ledgers.policies.settle(seq, *judged, reason="a test")
    return str(turn)


def spelled(home: Path, words: str) -> set[str]:
    return {
        path.name
        for path in home.rglob("*")
        if path.is_file() and words.lower().encode() in path.read_bytes().lower()
    }


def stored(home: Path, turn: str) -> set[bytes]:
    """Pieces of every text and blob that only this turn needs, token ids and hashes too."""
    mine, rest = set[bytes](), b""
    for name, key, table in (("serve", "id", schema.turns), ("learn", "turn_id", samples)):
        with closing(sqlite3.connect(home / f"{name}.db")) as connection:
            for own, *row in connection.execute(f"SELECT {key}, * FROM {table.name}").fetchall():
                values = [as_bytes(value) for value in row]
                mine |= {piece for value in values if own == turn for piece in pieces(value)}
                rest += b"" if own == turn else b" ".join(values)
    with closing(sqlite3.connect(home / "serve.db")) as connection:
        for (body,) in connection.execute("SELECT body FROM bodies").fetchall():
            is_mine = WORDS.encode() in body
            mine |= set(pieces(body)) if is_mine else set()
            rest += b"" if is_mine else body
    # Rows of verdicts stay, without text: they are counted, and name the turn by its id.
    return {piece for piece in mine if piece not in rest and piece not in turn.encode()}


def as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def pieces(data: bytes) -> list[bytes]:
    """Short enough that most lie whole in one page."""
    return [piece for i in range(0, len(data), 32) if len(piece := data[i : i + 32]) >= 12]


def bytes_in(home: Path) -> dict[str, bytes]:
    """Of the databases, their logs and the search index."""
    return {path.name: path.read_bytes() for path in home.iterdir() if ".db" in path.name}


@pytest.mark.parametrize("is_serving", [False, True])
async def test_no_stored_byte_is_left_in_any_file(tmp_path: Path, is_serving: bool) -> None:
    """In the databases, their logs and the index; also beside a server, which keeps the logs open."""
    system = scripted_system(tmp_path)
    old = await say(system, WORDS)
    await say(system, KEPT)
    while system.dashboard.index():
        pass
    for db in (system.ledgers.serve.db, system.ledgers.learn.db):
        with db.begin() as connection:
            connection.exec_driver_sql("PRAGMA user_version")  # its log is open
    before = bytes_in(tmp_path)
    values = [v for v in stored(tmp_path, old) if any(v in data for data in before.values())]
    assert len(values) > 20
    assert any(b"\0" in value for value in values), "token ids are among them"
    assert {name for name, data in before.items() if any(v in data for v in values)} >= {"serve.db-wal"}
    with system.ledgers.serve.writing() as connection:
        turns, long_ago = schema.turns, time.time() - 10 * 86400
        connection.execute(turns.update().where(turns.c.id == old).values(created_at=long_ago))
    if not is_serving:
        await system.close()
    assert main(["data", "prune", "--older-than", "5", "--home", str(tmp_path)]) == 0
    left = [(name, value) for name, data in bytes_in(tmp_path).items() for value in values if value in data]
    assert left == []
    assert spelled(tmp_path, WORDS) == set()
    assert spelled(tmp_path, KEPT), "the rest is there"
    if is_serving:
        await system.close()


async def test_nothing_is_left(tmp_path: Path) -> None:
    system = scripted_system(tmp_path)
    old = await say(system, WORDS)
    await say(system, KEPT)
    while system.dashboard.index():
        pass
    with system.ledgers.serve.writing() as connection:
        turns = schema.turns
        long_ago = time.time() - 10 * 86400
        connection.execute(turns.update().where(turns.c.id == old).values(created_at=long_ago))
    assert {name.partition("-")[0] for name in spelled(tmp_path, WORDS)} >= {"serve.db", "learn.db"}
    await system.close()
    assert main(["data", "prune", "--older-than", "5", "--home", str(tmp_path)]) == 0
    assert spelled(tmp_path, WORDS) == set()
    assert spelled(tmp_path, KEPT), "the rest is there"
    index = SearchIndex(tmp_path / "search.db", None)  # type: ignore[arg-type]
    assert index._open().execute("SELECT count(*) FROM words").fetchone() == (1,)
    index.close()
