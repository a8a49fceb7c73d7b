"""Verdicts that never stop coming do not keep a step from being taken."""

from __future__ import annotations

from .test_poison import HYBRID, learned, worker_of
from .test_training import Make, make, tiny

__all__ = ["make", "tiny"]


async def test_a_step_that_is_due_is_taken_while_verdicts_keep_coming(make: Make) -> None:
    stack = make(**HYBRID)
    await learned(stack)
    worker, pending = worker_of(stack), stack.policy_ledger.pending
    last = pending(10)[-1]
    rounds = 0

    def endless(limit: int) -> list[tuple[int, str]]:
        nonlocal rounds
        rounds += 1
        assert rounds < 100, "the sampler never gives way"
        return pending(limit) or [last]

    stack.policy_ledger.pending = endless  # type: ignore[method-assign]
    assert await worker.step()
    assert stack.policy_ledger.serving() == 1
