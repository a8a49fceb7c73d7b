"""Unlearning needs the optimizer state of the version it goes back to, also where that was freed."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.capture.samples import samples
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.policies import TRAINER_STATE
from openclaw_rl.types import BASE_VERSION, Json, Trainer

from .hinted_stack import HintedStack
from .test_forgetting import WORDS, close, forgetting, talk, weights
from .test_scopes import ANN, Stack

Make = Callable[..., Stack]
TABLE = "please put it in a table"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def make(tmp_path: Path, model: Path) -> AsyncIterator[Make]:
    stacks: list[Stack] = []

    def one(source: Stack | None = None, **settings: Any) -> Stack:
        home = tmp_path / f"home{len(stacks)}"
        if source is not None:
            copy_home(source, home)
        stacks.append(Stack(home, model, reward_baseline=False, **settings))
        return stacks[-1]

    yield one
    for stack in stacks:
        await close(stack)


def copy_home(stack: Stack, home: Path) -> None:
    for db in (stack.system.ledgers.serve.db, stack.system.ledgers.learn.db):
        db.dispose()
    shutil.copytree(stack.config.home, home, ignore=shutil.ignore_patterns("keys.json"))


def lose_states(stack: Stack, *versions: int) -> None:
    for version in versions:
        stack.system.store.forget(version, only_state=True)


async def learned(stack: Stack, steps: int) -> list[str]:
    """So many versions, two complaints each; the sessions of the last two."""
    sessions: list[str] = []
    for step in range(steps):
        sessions = await talk(stack, f"{step}", f"{step}{WORDS}")
        await stack.learn()
    return sessions


@pytest.mark.parametrize("kept", [BASE_VERSION, 1])
async def test_the_steps_since_the_last_state_are_repeated(make: Make, kept: int) -> None:
    stack = make()
    sessions = await learned(stack, 4)
    await talk(stack, "five")
    twin = make(stack)
    lose_states(stack, *({1, 2, 3} - {kept}))
    twins = forgetting(twin).forget("session", sessions[1])
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert twins is not None
    assert receipt["back_to"] == twins["back_to"] == {ANN: 3}
    assert twins["retraining"] == {ANN: "bit for bit"}
    start = "the base" if kept == BASE_VERSION else "version 1"
    assert receipt["retraining"][ANN].startswith("bit for bit: the optimizer state of version 3 is gone")
    assert start in receipt["retraining"][ANN]
    await stack.learn()
    await twin.learn()
    assert stack.policies.serving(ANN) == twin.policies.serving(ANN) == 5
    assert weights(stack, 5) == weights(twin, 5), "to the last bit"
    assert stack.system.store.has_state(3)
    assert [path.name for path in stack.system.store.folder.glob(".*")] == []


async def test_states_further_back_are_fewer_and_are_gone_on_from(make: Make) -> None:
    stack = make()
    sessions = [await learned(stack, 1) for _ in range(15)]
    store = stack.system.store
    assert [v for v in range(1, 16) if store.has_state(v)] == [2, *range(4, 16)]
    store.forget(3, only_state=False)  # on a busy machine it may be one of the two that served longest
    receipt = forgetting(stack).forget("session", sessions[3][1])
    assert receipt is not None
    assert receipt["back_to"] == {ANN: 2}, "the newest before it whose state is kept"
    assert receipt["retraining"] == {ANN: "bit for bit"}, "no step to repeat first"


async def test_also_where_older_weights_were_deleted(make: Make) -> None:
    stack = make()
    sessions = await learned(stack, 3)
    await talk(stack, "four")
    twin = make(stack)
    stack.system.store.forget(1, only_state=False)
    lose_states(stack, 2)
    for each in (stack, twin):
        forgetting(each).forget("session", sessions[1])
        await each.learn()
    assert weights(stack, 4) == weights(twin, 4)


async def test_a_step_that_began_with_a_new_optimizer_is_repeated_with_one(make: Make) -> None:
    stack = make()
    await learned(stack, 2)
    lose_states(stack, 1, 2)
    sessions = await learned(stack, 2)
    assert [stack.policies.policy(v).metrics.get("new_optimizer") for v in (2, 3, 4)] == [None, True, None]  # type: ignore[union-attr]
    await talk(stack, "five")
    twin = make(stack)
    lose_states(stack, 3)
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert "one step from version 2 on" in receipt["retraining"][ANN]
    forgetting(twin).forget("session", sessions[1])
    await stack.learn()
    await twin.learn()
    assert weights(stack, 5) == weights(twin, 5)


async def test_where_a_new_optimizer_was_used_before_it_is_again(make: Make) -> None:
    stack = make()
    await learned(stack, 2)
    lose_states(stack, 1, 2)
    sessions = await learned(stack, 1)
    await talk(stack, "four")
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert (receipt["back_to"], receipt["retraining"]) == ({ANN: 2}, {ANN: "bit for bit"})
    await stack.learn()
    assert not (stack.system.store.path(2) / TRAINER_STATE).exists()


async def test_pruned_samples_are_said(make: Make) -> None:
    stack = make()
    sessions = await learned(stack, 3)
    await talk(stack, "four")
    lose_states(stack, 1, 2)
    with stack.policies.db.begin() as connection:
        connection.execute(samples.update().where(samples.c.step == 1).values(data=None))
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert receipt["retraining"][ANN].startswith("not bit for bit: ")
    assert receipt["retraining"][ANN].endswith("samples of version 1 were pruned")
    await stack.learn()
    assert stack.policies.serving(ANN) == 4, "it is learned nevertheless"
    assert stack.system.store.manifest(4)["new_optimizer"]


async def test_weights_that_come_out_otherwise_are_not_taken(make: Make) -> None:
    stack = make()
    sessions = await learned(stack, 3)
    await talk(stack, "four")
    lose_states(stack, 1, 2)
    with stack.policies.db.begin() as connection:
        [first, *_] = connection.scalars(
            samples.select().with_only_columns(samples.c.turn_id).where(samples.c.step == 1)
        ).all()
        connection.execute(samples.delete().where(samples.c.turn_id == first))
    forgetting(stack).forget("session", sessions[1])
    await stack.learn()
    assert stack.system.store.manifest(4)["new_optimizer"]
    assert not stack.system.store.has_state(2)


async def test_what_an_undone_version_answered_is_not_stale(make: Make) -> None:
    stack = make(max_staleness=1)
    first = await talk(stack, WORDS, "one")
    await stack.learn()
    for _ in range(3):
        await learned(stack, 1)
    forgetting(stack).forget("session", first[0])
    assert stack.policies.serving(ANN) == BASE_VERSION
    await stack.learn()
    counts = stack.policies.counts()
    assert {name for name in counts if "too long ago" in name} == set()
    assert counts["trained"] == 7


async def test_the_default_method_s_steps_are_repeated_with_the_wishes_of_their_time(
    tmp_path: Path, model: Path
) -> None:
    stack = HintedStack(tmp_path / "home", model)
    try:
        for name in ("snow", "hail"):
            await stack.say(f"tell me about {name}", f"bad: {TABLE}")
            await stack.sample()
            await stack.learn()
        session, _ = await stack.say(f"tell me about {WORDS}", f"bad: {TABLE}")
        await stack.sample()
        await stack.learn()
        assert stack.policies.serving(ANN) == 3
        await stack.say("tell me about rain", f"bad: {TABLE}")
        await stack.sample()
        twin = stack.copy(tmp_path / "twin")
        try:
            lose_states(stack, 1, 2)
            for each in (stack, twin):
                receipt = forgetting(each).forget("session", session)
                assert receipt is not None
                assert receipt["back_to"] == {ANN: 2}, json.dumps(receipt)
                await each.learn()
            assert weights(stack, 4) == weights(twin, 4)
            assert stack.system.store.has_state(2)
        finally:
            await close(twin)
    finally:
        await close(stack)


async def test_a_trainer_saves_into_folders_that_are_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a repeated step: the trainers of this package make them if need be, others may not."""
    stack = make()
    sessions = await learned(stack, 3)
    await talk(stack, "four")
    lose_states(stack, 1, 2)
    assert forgetting(stack).forget("session", sessions[1]) is not None
    worker = await stack.learner()
    there: dict[str, bool] = {}
    make_trainer = worker._make_trainer

    def watched() -> Trainer:
        trainer = make_trainer()
        save = trainer.save

        def seen(folder: Path, state: Json) -> str | None:
            there[str(folder)] = folder.is_dir()
            return save(folder, state)

        monkeypatch.setattr(trainer, "save", seen)
        return trainer

    monkeypatch.setattr(worker, "_make_trainer", watched)
    while await worker.step():
        pass
    assert any(".rebuild" in folder for folder in there)
    assert all(there.values())
