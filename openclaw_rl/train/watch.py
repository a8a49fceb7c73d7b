"""Have people liked the replies less since some version? A test that may be looked at after every verdict.

Betting against the claim "nobody likes the versions since less than those before": each new verdict is set
against earlier ones of the same person. The stake grows where the earlier ones are better. If the claim is
true it is not expected to grow, whatever the share of complaints and however often one looks, so it exceeds
``1 / rate`` with probability at most ``rate``. Nothing has to be known about how pleased people were before,
and a new person who is hard to please says nothing about a version.

Not covered: verdicts that depend on each other, such as complaints in one conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Of this many versions that are no worse than those before them, any is left again with this probability.
VERSIONS, FALSE_ALARMS = 100, 0.05
#: Versions before the one that serves that are looked at.
_BOUNDARIES = 16
#: Earlier verdicts that one new verdict is set against, where there are enough for that many new ones: their
#: mean varies less than one of them.
_MOST_BLOCK, _ENOUGH = 4, 16
#: Falls of the mean that are betted on, an equal part of the stake each.
_FALLS = (0.2, 0.4, 0.6)
#: What the mean is taken for before there are verdicts, and how many they would have been.
_PRIOR_MEAN, _PRIOR = 0.7, 4.0
#: Of what could be betted without losing all of it.
_MOST = 0.9


@dataclass(frozen=True, slots=True)
class Reaction:
    """A verdict (−1, 0, +1) on something that a version said to a person."""

    version: int
    user: str
    score: int


def better_before(lineage: Sequence[int], reactions: Sequence[Reaction]) -> int | None:
    """The version to go back to; None where nothing says that the later ones are worse.

    ``lineage`` begins with the version that serves, followed by those it was made from. ``reactions`` are
    in the order they came.
    """
    evidence = {
        target: max_evidence(
            [r for r in reactions if r.version in lineage[number:]],
            [r for r in reactions if r.version in lineage[:number]],
        )
        for number, target in enumerate(lineage[: _BOUNDARIES + 1])
        if number
    }
    target = max(evidence, key=lambda version: evidence[version], default=None)
    return target if target is not None and evidence[target] >= VERSIONS / FALSE_ALARMS else None


def max_evidence(before: Sequence[Reaction], after: Sequence[Reaction]) -> float:
    """The largest value that the betting martingale has reached, starting from 1."""
    wealth, most = [1.0] * len(_FALLS), 1.0
    mean, number = _PRIOR_MEAN, _PRIOR
    for old, new in _pairs(before, after):
        for n, fall in enumerate(_FALLS):
            bet = min(fall / 2 / (mean * (1 - mean)), _MOST / mean, _MOST / (1 - mean))
            wealth[n] *= (1 + bet * (old - mean)) * (1 - bet * (new - mean))
        number += 2
        mean += (old + new - 2 * mean) / number
        most = max(most, sum(wealth) / len(wealth))
    return most


def _pairs(before: Sequence[Reaction], after: Sequence[Reaction]) -> Iterator[tuple[float, float]]:
    """The mean of some of a person's verdicts before, the latest first, and one of theirs since."""
    unused: dict[str, list[float]] = {}
    for reaction in before:
        unused.setdefault(reaction.user, []).append((reaction.score + 1) / 2)
    sizes = {user: min(_MOST_BLOCK, max(1, len(mine) // _ENOUGH)) for user, mine in unused.items()}
    for reaction in after:
        mine = unused.get(reaction.user, [])
        block = [mine.pop() for _ in range(min(sizes.get(reaction.user, 0), len(mine)))]
        if block:
            yield sum(block) / len(block), (reaction.score + 1) / 2
