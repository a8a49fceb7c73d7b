"""Which versions' weights may be deleted: ledger rows stay for ever, twenty megabytes a version need not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from openclaw_rl.types import Policy

#: Rejected versions to keep for inspection.
_REJECTED = 2
#: Longest-serving versions to keep: users were content with them.
_LONGEST = 2
_OVER = ("retired", "rejected")
#: Unlearning repeats at most one step more for each so many that it goes back.
_ONE_MORE_IN = 11
#: The newest versions, all of which keep their optimizer state.
KEEP_STATES = _ONE_MORE_IN


def with_states(lineage: Sequence[int]) -> list[int]:
    """Versions that keep their optimizer state, so that unlearning can go on from them.

    The newest eleven, and before them some eleven for every doubling of the distance. Whatever is forgotten,
    the newest of them from before it is at most 1.1 times as many steps back as the step that learned it. A
    version that is left out once is never needed later: its place in the lineage has to divide by ever
    larger powers of two.
    """
    depth = len(lineage) - 1  # the last is the base
    spacing = [1 << ((distance // _ONE_MORE_IN + 1).bit_length() - 1) for distance in range(depth)]
    return [
        version
        for distance, version in enumerate(lineage[:depth])
        if (depth - distance) % spacing[distance] == 0
    ]


def expendable(
    policies: Sequence[Policy],
    lineage: Sequence[int],
    served_s: Mapping[int, float],
    keep: int,
    states: Collection[int] = (),
) -> list[int]:
    """Versions of a scope whose weights are not needed; ``policies`` is newest first.

    Keeps the newest ``keep`` of the serving version's lineage, those with ``states``, the last two rejected,
    those that served longest, those promoted by hand or by a rollback, and those still in training.
    """
    rejected = [policy.version for policy in policies if policy.status == "rejected"]
    longest = sorted(served_s, key=lambda version: -served_s[version])[:_LONGEST]
    needed: Collection[int] = {*lineage[:keep], *states, *rejected[:_REJECTED], *longest}
    over = [policy for policy in policies if policy.status in _OVER and not policy.gate.get("history")]
    return [policy.version for policy in over if policy.version not in needed]
