"""Have users liked the replies less since some version? A sequential test, valid after every verdict.

It bets against the null hypothesis "nobody likes the versions since less than those before": each new verdict
is compared with earlier ones of the same user, and the wealth grows if the earlier ones are better. Under the
null hypothesis it does not grow in expectation, whatever the share of complaints and however often it is
checked, so it exceeds ``1 / rate`` with probability at most ``rate``. The test needs no prior satisfaction
rate, and a new user who is hard to please does not count against a version.

Not covered: verdicts that depend on each other, such as complaints in one session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Among this many versions no worse than their predecessors, the probability of any rollback is at most this.
VERSIONS, FALSE_ALARMS = 100, 0.05
#: How many versions before the serving one are considered as targets.
_BOUNDARIES = 16
#: One new verdict is compared with the mean of a block of earlier ones, which varies less than a single one.
#: A block has one verdict for every 16 earlier ones of the user, at least 1 and at most 4.
_MOST_BLOCK, _ENOUGH = 4, 16
#: Drops of the mean to bet on, with an equal part of the wealth each.
_FALLS = (0.2, 0.4, 0.6)
#: Prior of the mean, and how many verdicts it counts as.
_PRIOR_MEAN, _PRIOR = 0.7, 4.0
#: Largest bet, as a share of one that could lose everything.
_MOST = 0.9


@dataclass(frozen=True, slots=True)
class Reaction:
    """A verdict (−1, 0, +1) on a version's reply to a user."""

    version: int
    user: str
    score: int


def better_before(lineage: Sequence[int], reactions: Sequence[Reaction]) -> int | None:
    """The version to roll back to; None without evidence that the later ones are worse.

    ``lineage`` is the serving version followed by its ancestors. ``reactions`` are in order of arrival.
    """
    places = {version: number for number, version in enumerate(lineage)}
    placed = [(places[r.version], r) for r in reactions if r.version in places]
    evidence = {
        target: max_evidence([r for n, r in placed if n >= number], [r for n, r in placed if n < number])
        for number, target in enumerate(lineage[: _BOUNDARIES + 1])
        if number
    }
    target = max(evidence, key=lambda version: evidence[version], default=None)
    return target if target is not None and evidence[target] >= VERSIONS / FALSE_ALARMS else None


def max_evidence(before: Sequence[Reaction], after: Sequence[Reaction]) -> float:
    """The largest value that the betting martingale reaches, starting from 1."""
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
    """Pairs per user: the mean of some verdicts from before, latest first, and one verdict since."""
    unused: dict[str, list[float]] = {}
    for reaction in before:
        unused.setdefault(reaction.user, []).append((reaction.score + 1) / 2)
    sizes = {user: min(_MOST_BLOCK, max(1, len(mine) // _ENOUGH)) for user, mine in unused.items()}
    for reaction in after:
        mine = unused.get(reaction.user, [])
        block = [mine.pop() for _ in range(min(sizes.get(reaction.user, 0), len(mine)))]
        if block:
            yield sum(block) / len(block), (reaction.score + 1) / 2
