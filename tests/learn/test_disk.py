"""Weights that nobody needs any more are deleted; what they were stays known."""

from __future__ import annotations

from .test_poison import HYBRID, learned, worker_of
from .test_training import Make, make, run, tiny

__all__ = ["make", "tiny"]


async def test_old_weights_go_and_promote_says_so(make: Make) -> None:
    stack = make(**HYBRID, keep_versions=1)
    worker = worker_of(stack)
    for _ in range(16):
        await learned(stack)
        await run(worker)
    assert stack.policy_ledger.serving() == 16
    assert [p.version for p in stack.policy_ledger.list_policies()] == list(range(16, 0, -1))
    kept = [version for version in range(1, 17) if stack.system.store.has_weights(version)]
    # Unlearning goes on from the newest eleven or every other one before. The two longest-serving stay, too.
    assert {2, 4, *range(6, 17)} <= set(kept)
    assert len(kept) <= 15
    [gone, *_] = set(range(1, 17)) - set(kept)
    refused = await stack.http.post(f"/v1/policies/{gone}/promote")
    assert refused.status_code >= 400
    assert "they were deleted (--keep-versions)" in refused.text
