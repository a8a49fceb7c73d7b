"""What is forgotten is gone from every byte, and unlearned: the weights are those that never saw it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.erase import ErasePlan
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.testing import clean_environment
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION
from openclaw_rl.types.lora import ADAPTER_FILE

from .test_scopes import ANN, Stack

WORDS = "Rumpelstiltskin"
_LEDGERS = (("serve", ServeLedger), ("learn", LearnLedger))


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path / "home", reward_baseline=False)
    yield stack
    await close(stack)


async def close(stack: Stack) -> None:
    for client in stack.http.values():
        await client.aclose()
    await stack.system.close()


async def talk(stack: Stack, *names: str) -> list[str]:
    """A complaint each, before anything was learned; the ids of the sessions."""
    sessions = []
    for name in names:
        messages: list[Any] = [{"role": "user", "content": f"tell me about {name}"}]
        answer = await stack.ask("ann", messages)
        sessions.append(answer.headers["x-session-id"])
        reply = answer.json()["choices"][0]["message"]
        await stack.ask("ann", [*messages, reply, {"role": "user", "content": f"bad, say {name} less"}])
    await stack.system.gateway.drain()
    return sessions


def weights(stack: Stack, version: int) -> bytes:
    return (stack.system.store.path(version) / ADAPTER_FILE).read_bytes()


def spelled(home: Path) -> list[str]:
    return [
        str(p) for p in home.rglob("*") if p.is_file() and WORDS.lower().encode() in p.read_bytes().lower()
    ]


def forgetting(stack: Stack) -> Forgetting:
    return Forgetting(stack.config.home, stack.system.ledgers, stack.system.store)


async def test_the_weights_are_those_that_never_saw_it(stack: Stack, tmp_path: Path) -> None:
    sessions = await talk(stack, "one", "two", WORDS, "four", "five", "six")
    for db in (stack.system.ledgers.serve.db, stack.system.ledgers.learn.db):
        db.dispose()
    shutil.copytree(stack.config.home, tmp_path / "other", ignore=shutil.ignore_patterns("*.json", "model"))
    await stack.learn()
    assert stack.policies.serving(ANN) == 3, "two samples a step"
    before = [weights(stack, version) for version in (1, 2)]
    receipt = (await stack.http["ann"].delete(f"/v1/sessions/{sessions[2]}")).json()
    assert (receipt["state"], receipt["back_to"], receipt["versions"]) == ("done", {ANN: 1}, [2, 3])
    assert stack.policies.serving(ANN) == 1, "the last version from before it serves meanwhile"
    assert weights(stack, 1) == before[0]
    assert not stack.system.store.exists(2)
    await stack.learn()
    again = stack.policies.serving(ANN)
    assert again == 4

    other = Stack(tmp_path / "other", reward_baseline=False)
    try:
        forgetting(other).forget("session", sessions[2])
        await other.learn()
        assert other.policies.serving(ANN) == 2
        assert weights(stack, 4) == weights(other, 2), "to the last bit"
        assert before[1] != weights(other, 2), "it had made a difference"
    finally:
        await close(other)


async def test_no_byte_of_it_is_left(stack: Stack) -> None:
    sessions = await talk(stack, "one", WORDS, "three", "four")
    system = stack.system
    while system.dashboard.index():
        pass
    await stack.learn()
    assert spelled(stack.config.home), "it was there"
    assert (await stack.get("/v1/sessions", query=WORDS))["data"]
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert receipt["logs_empty"]
    assert spelled(stack.config.home) == []
    assert WORDS not in json.dumps(receipt)
    assert system.ledgers.serve.check_integrity() == []
    assert (await stack.get("/v1/sessions", query="three"))["data"], "the rest can still be found"
    assert (await stack.get("/v1/sessions", query=WORDS))["data"] == []


async def test_a_turn_goes_with_those_that_repeat_it(stack: Stack) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    first = await stack.ask("ann", messages)
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": f"bad, {WORDS}"}]
    second = await stack.ask("ann", messages)
    messages += [second.json()["choices"][0]["message"], {"role": "user", "content": "and now?"}]
    await stack.ask("ann", messages)
    await stack.system.gateway.drain()
    await stack.learn()
    assert (await stack.http["ann"].delete(f"/v1/turns/{second.json()['id']}")).status_code == 200
    assert spelled(stack.config.home) == []
    view = (await stack.http["ann"].get(f"/v1/sessions/{first.headers['x-session-id']}")).json()
    assert [turn["id"] for turn in view["turns"]] == [first.json()["id"]]
    assert (view["turns"][0]["state"], view["turns"][0]["verdict"]) == ("waiting", None)


async def test_a_person_goes_and_nobody_else(stack: Stack) -> None:
    await talk(stack, WORDS, "two")
    await stack.complain("ben", 2)
    await stack.learn()
    bens = stack.policies.serving("user:ben")
    assert (await stack.http["ben"].delete("/v1/users/ann")).status_code == 404
    assert (await stack.http["owner"].delete("/v1/users/ann")).status_code == 200
    assert spelled(stack.config.home) == []
    assert (stack.policies.serving(ANN), stack.policies.serving("user:ben")) == (BASE_VERSION, bens)
    counts = stack.system.ledgers.serve.counts()
    assert (counts["turns"], counts["sessions"]) == (4, 2)
    status = await stack.get("/v1/status")
    assert sum(status["funnel"]["by_state"].values()) == 4


async def test_a_step_under_way_is_not_published(stack: Stack) -> None:
    [session] = await talk(stack, WORDS)
    await stack.learn()
    policies = stack.policies
    claimed = policies.claim(1, BASE_VERSION, "", scope=ANN)
    assert claimed is not None
    forgetting(stack).forget("session", session)
    policies.trained(claimed.version, {"loss": 1.0})
    assert not policies.publish(claimed.version, {"passed": True})
    assert policies.serving(ANN) == BASE_VERSION
    assert policies.unfinished() is None


async def test_the_note_is_on_disk_before_anything_is_erased(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the names of its file and folder: a power cut must not take them back."""
    [session] = await talk(stack, WORDS)
    synced: list[str] = []
    fsync, erase = os.fsync, stack.policies.erase

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def erases(chosen: ErasePlan, has_weights: Callable[[int], bool]) -> dict[str, int]:
        synced.append("erased")
        return erase(chosen, has_weights)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(stack.policies, "erase", erases)
    forgetting(stack).forget("session", session)
    before = synced[: synced.index("erased")]
    assert [str(stack.config.home), str(stack.config.home / "forgotten")] == before[-2:]
    assert synced[-1] == str(stack.config.home / "forgotten"), "the receipt, too"


@dataclass(frozen=True)
class State:
    """Everything of a data folder that forgetting changes."""

    turns: tuple[str, ...]
    serving: dict[str, int]
    weights: dict[int, bytes]
    samples: int
    is_spelled: bool
    problems: list[str]


def state_of(home: Path) -> State:
    ledgers = Ledgers.of(*(kind(sqlite_url(home / f"{name}.db")) for name, kind in _LEDGERS))
    with closing(ledgers), ledgers.serve.db.connect() as connection:
        store = PolicyStore(home / "policies")
        return State(
            tuple(sorted(connection.scalars(sa.select(schema.turns.c.id)))),
            ledgers.policies.serving_table(),
            {v: (store.path(v) / ADAPTER_FILE).read_bytes() for v in range(1, 9) if store.exists(v)},
            sum(ledgers.policies.counts().values()),
            bool(spelled(home)),
            ledgers.serve.check_integrity(),
        )


def resumed(home: Path) -> State:
    """After the next start."""
    ledgers = Ledgers.of(*(kind(sqlite_url(home / f"{name}.db")) for name, kind in _LEDGERS))
    with closing(ledgers):
        work = Forgetting(home, ledgers, PolicyStore(home / "policies"))
        work.resume()
        assert work.resume() == 0
    return state_of(home)


async def test_a_kill_at_any_moment_leaves_the_old_state_or_the_new(stack: Stack, tmp_path: Path) -> None:
    """Killed before each of 24 writes, from the first to the last."""
    sessions = await talk(stack, WORDS, "two")
    await stack.learn()
    while stack.system.dashboard.index():
        pass
    home, scratch = stack.config.home, tmp_path / "killed"
    await close(stack)
    old = state_of(home)
    command = [sys.executable, "-m", "tests.kill_points", str(home), str(scratch), "24"]
    done = subprocess.run(
        [*command, "forget", "session", sessions[0]],
        cwd=Path(__file__).parent.parent,
        env=clean_environment(home),
        capture_output=True,
        text=True,
        check=True,
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    new = state_of(scratch / "whole")
    assert (len(old.turns), old.serving, old.is_spelled) == (4, {ANN: 1}, True)
    assert (len(new.turns), new.serving, new.weights, new.is_spelled) == (2, {}, {}, False)
    assert len(kills) == 24
    assert all(kill["killed"] for kill in kills)
    seen = []
    for kill in kills:
        copy = Path(kill["home"])
        begun = bool(list(copy.glob("forgotten/forget-*.json")))
        if not begun:
            assert state_of(copy) == old, kill
        assert resumed(copy) == (new if begun else old), kill
        receipts = [json.loads(path.read_text())["state"] for path in copy.glob("forgotten/forget-*.json")]
        assert receipts == ["done"] * begun, kill
        seen.append(begun)
    assert seen == sorted(seen), "once it has begun, it is finished"
    assert {False, True} == set(seen)
