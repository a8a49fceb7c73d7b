"""Which versions' weights may go: rows in the ledger stay for ever, twenty megabytes a version need not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from openclaw_rl.types import Policy

#: Of versions that did not pass, to be looked into.
_REJECTED = 2
#: That served longest: what people were content with.
_LONGEST = 2
_OVER = ("retired", "rejected")


def expendable(
    policies: Sequence[Policy], lineage: Sequence[int], served_s: Mapping[int, float], keep: int
) -> list[int]:
    """Versions of a scope, given newest first, whose weights nobody needs.

    Kept are the last ``keep`` that led to the one that serves, the last two that were rejected, those that
    served longest, those that somebody chose, and whatever is in the making.
    """
    rejected = [policy.version for policy in policies if policy.status == "rejected"]
    longest = sorted(served_s, key=lambda version: -served_s[version])[:_LONGEST]
    needed: Collection[int] = {*lineage[:keep], *rejected[:_REJECTED], *longest}
    over = [policy for policy in policies if policy.status in _OVER and not policy.gate.get("history")]
    return [policy.version for policy in over if policy.version not in needed]
