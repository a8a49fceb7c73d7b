"""A person who has not been here for a day has one version on disk, without the optimizer's state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.capture.samples import policies, samples
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.policies import TRAINER_STATE, PolicyStore
from openclaw_rl.types import ScoreRequest

from .test_forgetting import close
from .test_scopes import ANN, BEN, Stack

DAY_S = 86400.0


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """Ann and ben have three versions each."""
    stack = Stack(tmp_path / "home")
    for _ in range(3):
        for user in ("ann", "ben"):
            await stack.complain(user, 2)
            await stack.learn()
    yield stack
    await close(stack)


def kept(stack: Stack, scope: str) -> list[tuple[int, bool]]:
    """Versions on disk, oldest first, and whether training can go on from each as it was."""
    store = stack.system.store
    made = sorted(policy.version for policy in stack.policies.list_policies(scope=scope))
    return [(v, (store.path(v) / TRAINER_STATE).exists()) for v in made if store.exists(v)]


def let_pass(stack: Stack, scope: str, seconds: float) -> None:
    with stack.policies.db.begin() as connection:
        for table in (samples, policies):
            earlier = table.update().values(created_at=table.c.created_at - seconds)
            connection.execute(earlier.where(table.c.scope == scope))


async def test_of_an_idle_person_one_version_is_kept_and_answers_as_before(stack: Stack) -> None:
    serving = stack.policies.serving(ANN)
    before, bens = kept(stack, ANN), kept(stack, BEN)
    assert [has_state for _, has_state in before] == [True] * 3
    prompt = stack.renderer.render([{"role": "user", "content": "hello ann"}])
    request = ScoreRequest([*prompt, *range(10, 20)], 1, policy_version=serving)
    await stack.system.follow()
    scores = await stack.system.engine.score(request)
    let_pass(stack, ANN, 0.9 * DAY_S)
    await stack.learn()
    assert kept(stack, ANN) == before, "not yet a day"
    let_pass(stack, ANN, 0.2 * DAY_S)
    await stack.learn()
    assert kept(stack, ANN) == [(serving, False)]
    assert kept(stack, BEN) == bens
    await stack.system.engine.unload(before[0][0])
    assert await stack.system.engine.score(request) == scores
    assert stack.system.store.has_weights(serving)
    await stack.complain("ann", 2)
    await stack.learn()
    newest = stack.policies.serving(ANN)
    assert newest > serving, "who comes back is learned for"
    assert kept(stack, ANN) == [(serving, False), (newest, True)]


async def test_while_something_waits_for_a_step_nothing_is_freed(stack: Stack) -> None:
    before = kept(stack, ANN)
    await stack.complain("ann", 1)
    await stack.learn()
    let_pass(stack, ANN, 2 * DAY_S)
    await stack.learn()
    assert stack.policies.waiting(ANN)[0] == 1
    assert kept(stack, ANN) == before


def test_the_default_model_s_adapter_takes_less_than_12_mb(model_path: Path, tmp_path: Path) -> None:
    store, trainer = PolicyStore(tmp_path), LocalTrainer(model_path)
    store.write(1, lambda folder: trainer.save(folder, {}), {})
    store.forget(1, only_state=True)
    assert store.num_bytes(1) < 12e6
