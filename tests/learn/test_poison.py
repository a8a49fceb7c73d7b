"""A step that always breaks, weights that are gone and another model's samples: learning goes on."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from openclaw_rl.capabilities import check_training
from openclaw_rl.capture.samples import samples
from openclaw_rl.config import load_config
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.models import fingerprint
from openclaw_rl.train.gate import GateResult
from openclaw_rl.train.worker import LearnWorker
from openclaw_rl.types import Capabilities, Needs

from .test_training import Make, Stack, make, run, talk, tiny

__all__ = ["make", "tiny"]
HYBRID: dict[str, Any] = {"algo": "hybrid", "batch_size": 2, "replay": 0}


async def learned(stack: Stack, number: int = 2) -> list[str]:
    turns = await talk(stack, number)
    await stack.judge()
    return turns


def worker_of(stack: Stack, passed: bool = True) -> LearnWorker:
    """Of a network that knows nothing, nothing can be asked."""
    worker = stack.worker()

    async def passes(*arguments: Any) -> GateResult:
        return GateResult(passed, "", ())

    worker._gate.check = passes  # type: ignore[method-assign]
    return worker


def break_step(worker: LearnWorker, version: int) -> None:
    take_step = worker._take_step

    def broken(policy: Any, items: Any) -> Any:
        if policy.version == version:
            raise RuntimeError("these numbers cannot be trained\nmore about it")
        return take_step(policy, items)

    worker._take_step = broken  # type: ignore[method-assign]


async def test_a_step_that_always_breaks_is_given_up_after_three_tries(make: Make) -> None:
    stack = make(**HYBRID)
    turns, worker = await learned(stack), worker_of(stack)
    break_step(worker, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be trained"):
            await run(worker)
    other = worker_of(stack)  # the tries are counted whoever makes them
    break_step(other, 1)
    await run(other)
    rejected = stack.policy_ledger.policy(1)
    assert rejected is not None
    assert rejected.status == "rejected"
    assert rejected.gate["reason"] == "its step failed 3 times: these numbers cannot be trained"
    for turn in turns:
        assert (await stack.get(f"/v1/turns/{turn}"))["reason"] == rejected.gate["reason"]
    await learned(stack)
    await run(other)
    assert stack.policy_ledger.serving() == 2


@pytest.mark.parametrize("passes", [True, False])
async def test_a_version_that_is_checked_again_after_a_kill_counts_once(make: Make, passes: bool) -> None:
    stack = make(**HYBRID)
    turns, worker = await learned(stack), worker_of(stack, passes)
    turn = stack.system.ledgers.serve.load_turn(turns[0])
    assert turn is not None
    wishes = stack.policy_ledger.wishes(relation, is_only_taking_back, is_wish)
    wishes.take_up(turn, "Please sing.", 0)
    outcome = "publish" if passes else "reject"
    decide = getattr(stack.policy_ledger, outcome)

    def killed(*arguments: Any) -> Any:
        raise ConnectionError("killed here")

    setattr(stack.policy_ledger, outcome, killed)
    with pytest.raises(ConnectionError):
        await run(worker)
    setattr(stack.policy_ledger, outcome, decide)
    await run(worker_of(stack, passes))
    [wish] = wishes.of_user(turn.user, turn.scope)
    assert (wish.versions, wish.in_vain) == (1, 0 if passes else 1)
    policy = stack.policy_ledger.policy(1)
    assert policy is not None
    assert policy.gate == GateResult(passes, "", ()).to_json() | {"checks": []}


async def test_a_parent_that_cannot_be_loaded_is_not_tried_without_end(make: Make) -> None:
    """Such as one whose state the training service lost."""
    stack = make(**HYBRID)
    turns, worker = await learned(stack), worker_of(stack)

    def lost(weights: Any) -> None:
        raise RuntimeError("the service cannot load the saved state")

    worker._get_trainer().resume = lost  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="saved state"):
            await run(worker)
    await run(worker)
    for turn in turns:
        reason = (await stack.get(f"/v1/turns/{turn}"))["reason"]
        assert reason == "its step failed 3 times: the service cannot load the saved state"


async def test_a_full_disk_is_not_the_steps_fault(make: Make) -> None:
    stack = make(**HYBRID)
    await learned(stack)
    worker = worker_of(stack)
    write = worker._store.write

    def full(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    worker._store.write = full  # type: ignore[method-assign]
    for _ in range(4):
        with pytest.raises(OSError, match="No space"):
            await run(worker)
    worker._store.write = write  # type: ignore[method-assign]
    await run(worker)
    assert stack.policy_ledger.serving() == 1


async def test_weights_that_are_gone_are_not_waited_for(make: Make) -> None:
    stack = make(**HYBRID)
    for _ in range(2):
        await learned(stack)
        await run(worker_of(stack))
    assert stack.policy_ledger.serving() == 2
    shutil.rmtree(stack.system.store.path(2))
    await learned(stack)
    await run(worker_of(stack))
    newest = stack.policy_ledger.policy(3)
    assert newest is not None
    assert (newest.parent, newest.status) == (1, "serving")
    assert any("weights are gone" in line for line in stack.said)


async def test_another_models_samples_are_not_trained_on(make: Make) -> None:
    stack = make(**HYBRID)
    ours = fingerprint(stack.model)
    turns = await learned(stack)
    stack.system.gateway.answerer.fingerprint = "another"
    foreign = await learned(stack, 1)
    await run(worker_of(stack))
    assert "another model" in (await stack.get(f"/v1/turns/{foreign[0]}"))["reason"]
    assert stack.system.store.manifest(1)["samples"] == turns
    assert stack.system.store.manifest(1)["fingerprint"] == ours


async def test_samples_that_waited_when_the_model_was_changed(make: Make) -> None:
    stack = make(**HYBRID)
    turns = await learned(stack)
    worker = worker_of(stack)
    assert await worker._sampler.run()
    with stack.policy_ledger.db.begin() as connection:
        connection.execute(samples.update().values(fingerprint="another"))
    await run(worker)
    assert stack.policy_ledger.serving() == 0
    assert "another model" in (await stack.get(f"/v1/turns/{turns[0]}"))["reason"]


async def test_a_version_of_another_model_is_not_trained_on_from(make: Make) -> None:
    stack = make(**HYBRID)
    await learned(stack)
    await run(worker_of(stack))
    stack.system.store.update_manifest(1, fingerprint="another")
    await learned(stack)
    await run(worker_of(stack))
    newest = stack.policy_ledger.policy(2)
    assert newest is not None
    assert (newest.parent, newest.status) == (0, "serving")


def test_full_weights_with_kl_are_refused_at_the_start() -> None:
    config = load_config({"finetune": "full", "kl_coefficient": 0.1}, environment={})
    with pytest.raises(ValueError, match="finetune lora"):
        check_training(config, Capabilities(full_weights=True), Needs())
