"""Weights that nobody needs any more are deleted; what they were stays known."""

from __future__ import annotations

from .test_poison import HYBRID, learned, worker_of
from .test_training import Make, make, run, tiny

__all__ = ["make", "tiny"]


async def test_old_weights_go_and_promote_says_so(make: Make) -> None:
    stack = make(**HYBRID, keep_versions=1)
    worker = worker_of(stack)
    for _ in range(9):
        await learned(stack)
        await run(worker)
    assert stack.policy_ledger.serving() == 9
    assert [p.version for p in stack.policy_ledger.list_policies()] == list(range(9, 0, -1))
    kept = [version for version in range(1, 10) if stack.system.store.has_weights(version)]
    # The newest four and some of those before, from which unlearning goes on; and those that served longest.
    assert {6, 7, 8, 9} <= set(kept)
    assert len(kept) <= 8
    [gone, *_] = set(range(1, 10)) - set(kept)
    refused = await stack.http.post(f"/v1/policies/{gone}/promote")
    assert refused.status_code >= 400
    assert "they were deleted (--keep-versions)" in refused.text
