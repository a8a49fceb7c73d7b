"""Which versions' weights may be deleted: ledger rows stay for ever, twenty megabytes a version need not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from openclaw_rl.types import Policy

#: Rejected versions to keep for inspection.
_REJECTED = 2
#: Longest-serving versions to keep: users were content with them.
_LONGEST = 2
_OVER = ("retired", "rejected")


def expendable(
    policies: Sequence[Policy], lineage: Sequence[int], served_s: Mapping[int, float], keep: int
) -> list[int]:
    """Versions of a scope whose weights are not needed; ``policies`` is newest first.

    Keeps the newest ``keep`` of the serving version's lineage, the last two rejected, those that served
    longest, those promoted by hand or by a rollback, and those still in training.
    """
    rejected = [policy.version for policy in policies if policy.status == "rejected"]
    longest = sorted(served_s, key=lambda version: -served_s[version])[:_LONGEST]
    needed: Collection[int] = {*lineage[:keep], *rejected[:_REJECTED], *longest}
    over = [policy for policy in policies if policy.status in _OVER and not policy.gate.get("history")]
    return [policy.version for policy in over if policy.version not in needed]
