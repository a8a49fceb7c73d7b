"""What is forgotten is taken out of the files that were exported before, or those files are named."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.capture import schema
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.erasing import hash_name
from openclaw_rl.processes.exports import Exports, Forgotten

from .test_forgetting import WORDS, close, forgetting, spelled, talk
from .test_scopes import Stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path / "home", reward_baseline=False)
    yield stack
    await close(stack)


def export(stack: Stack, file: Path, *more: str) -> Path:
    assert main(["data", "export", str(file), *more, "--home", str(stack.config.home)]) == 0
    return file


def sessions_in(file: Path) -> set[str]:
    return {json.loads(line)["session_id"] for line in file.read_text().splitlines()}


def parts_of(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def holding(parts: dict[str, str]) -> set[str]:
    return {name for name, text in parts.items() if WORDS.lower() in text.lower()}


async def test_it_is_taken_out_of_exports_and_the_rest_stays(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, "one", WORDS, "three")
    await stack.learn()
    everything, ann = (
        export(stack, tmp_path / "all.jsonl"),
        export(stack, tmp_path / "a.zip", "--user", "ann"),
    )
    ben = export(stack, tmp_path / "b.zip", "--user", "ben")
    assert WORDS in everything.read_text()
    assert holding(parts_of(ann)) >= {"sessions.jsonl", "verdicts.jsonl"}
    before, bens = parts_of(ann), ben.read_bytes()
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert receipt["exports"] == {
        str(everything): "rewritten", str(ann): "rewritten", str(ben): "holds nothing of it"
    }  # fmt: skip
    assert spelled(tmp_path) == []
    after = parts_of(ann)
    assert holding(after) == set()
    assert set(after) == set(before)
    assert sessions_in(everything) == {sessions[0], sessions[2]}
    assert len(after["verdicts.jsonl"].splitlines()) == len(before["verdicts.jsonl"].splitlines()) - 1
    assert ben.read_bytes() == bens
    assert {stat.S_IMODE(file.stat().st_mode) for file in (everything, ann)} == {0o600}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert forgetting(stack).forget("session", sessions[0]) is not None
    assert sessions_in(everything) == {sessions[2]}, "also the next time"
    assert main(["data", "import", str(everything), "--home", str(tmp_path / "other")]) == 0
    ledger = ServeLedger(sqlite_url(tmp_path / "other" / "serve.db"))
    assert ledger.counts()["turns"] == 2
    ledger.close()


async def test_a_turn_leaves_the_one_before_without_what_followed_it(stack: Stack, tmp_path: Path) -> None:
    await talk(stack, "two")
    messages = [{"role": "user", "content": "hello"}]
    first = (await stack.ask("ann", messages)).json()
    reaction = {"role": "user", "content": f"bad, {WORDS}"}
    second = (await stack.ask("ann", [*messages, first["choices"][0]["message"], reaction])).json()
    await stack.system.gateway.drain()
    await stack.learn()
    everything, ann = (
        export(stack, tmp_path / "all.jsonl"),
        export(stack, tmp_path / "a.zip", "--user", "ann"),
    )
    assert forgetting(stack).forget("turn", second["id"]) is not None
    assert WORDS not in everything.read_text()
    assert holding(parts_of(ann)) == set()
    for text in (everything.read_text(), parts_of(ann)["sessions.jsonl"]):
        turns = {turn["id"]: turn for line in text.splitlines() for turn in json.loads(line)["turns"]}
        assert turns[first["id"]]["next_state"] is None
        assert second["id"] not in turns


async def test_a_person_is_taken_out_also_of_what_was_pruned_since(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, WORDS)
    await stack.complain("ben", 1)
    everything, ann = (
        export(stack, tmp_path / "all.jsonl"),
        export(stack, tmp_path / "a.zip", "--user", "ann"),
    )
    mine = schema.turns.c.user == "ann"
    with stack.system.ledgers.serve.writing() as connection:
        connection.execute(schema.turns.update().where(mine).values(created_at=1.0))
    prune(stack.system.ledgers.serve, older_than_s=1e6)
    assert sessions[0] in sessions_in(everything), "pruning leaves exports alone"
    await talk(stack, "later")
    assert forgetting(stack).forget("user", "ann") is not None
    assert len(sessions_in(everything)) == 1
    assert WORDS not in everything.read_text()
    assert parts_of(ann)["sessions.jsonl"] == ""
    assert holding(parts_of(ann)) == set()


async def test_what_was_changed_moved_or_learned_is_named(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [session] = await talk(stack, WORDS)
    await talk(stack, "two")
    await stack.learn()
    changed, moved = export(stack, tmp_path / "changed.jsonl"), export(stack, tmp_path / "moved.jsonl")
    weights, home = tmp_path / "adapter", str(stack.config.home)
    model = ["--model", str(stack.model), "--home", home]
    assert main(["policy", "export", "1", "--to", str(weights), *model]) == 0
    with changed.open("a") as file:
        file.write("\n")
    moved.rename(tmp_path / "elsewhere.jsonl")
    assert main(["forget", "session", session, "--json", "--home", home]) == 0
    said = capsys.readouterr()
    outcomes = json.loads(said.out[said.out.index("{") :])["exports"]
    assert outcomes == {
        str(changed): "not rewritten: it is not the file that was written there",
        str(moved): "not found",
        str(weights): "not deleted: weights of version 1",
    }
    assert all(f"The export {file} may still hold it" in said.err for file in outcomes)
    assert weights.exists(), "nobody's files are deleted"


async def test_the_owner_alone_sees_where_they_are_and_the_list_is_private(
    stack: Stack, tmp_path: Path
) -> None:
    [session] = await talk(stack, WORDS)
    file = export(stack, tmp_path / "all.jsonl")
    [entry] = Exports(stack.config.home).entries()
    assert (entry["file"], entry["kind"], set(entry)) == (str(file), "sessions", {"file", "kind", "hashes"})
    assert stat.S_IMODE((stack.config.home / "exports.json").stat().st_mode) == 0o600
    receipt = (await stack.http["ann"].delete(f"/v1/sessions/{session}")).json()
    assert receipt["exports"] == {"rewritten": 1}


def test_an_export_that_failed_leaves_the_list_as_it_was(tmp_path: Path) -> None:
    exports = Exports(tmp_path)
    with exports.writing(tmp_path / "adapter", "version", version=1):
        pass
    before = exports.entries()
    with pytest.raises(OSError, match="exists"), exports.writing(tmp_path / "adapter", "version", version=2):
        raise FileExistsError("it exists")
    with pytest.raises(OSError, match="full"), exports.writing(tmp_path / "all.jsonl", "sessions"):
        raise OSError("the disk is full")
    assert exports.entries() == before
    assert [entry["version"] for entry in before] == [1]


def test_of_two_receipts_for_one_person_the_later_counts() -> None:
    """They are read in the order of their ids, which are random."""
    twice = [{"kind": "user", "of": hash_name("ann"), "at": at} for at in (20.0, 10.0)]
    turn = {"id": "pruned since", "exact": {"created_at": 15.0}}
    assert Forgotten(twice).holds({"user": "ann", "session_id": "s"}, turn)
