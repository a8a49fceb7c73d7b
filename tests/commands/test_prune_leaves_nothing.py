"""``data prune``: no byte of what went is left, in either database, its log or the search index."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from openclaw_rl.capture import schema
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
