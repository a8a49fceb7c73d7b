"""Strict majority of the present votes."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import JudgeError


def majority(votes: Sequence[int | None], threshold: float) -> int:
    """The score that more than ``threshold`` of the present votes agree on, else 0.

    A missing vote (None) does not count as neutral; without any votes, JudgeError is raised.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"the majority threshold must lie in 0..1 (1 excluded), got {threshold}")
    present = [vote for vote in votes if vote is not None]
    if not present:
        raise JudgeError(f"all {len(votes)} votes are missing")
    winners = [score for score in (1, 0, -1) if present.count(score) > threshold * len(present)]
    # With a threshold below one half, two scores can pass at once: that is a tie.
    best = max((present.count(score) for score in winners), default=0)
    winners = [score for score in winners if present.count(score) == best]
    return winners[0] if len(winners) == 1 else 0


def agreement(votes: Sequence[int | None]) -> float:
    """The share of pairs of present votes that agree; 1 for fewer than two votes."""
    present = [vote for vote in votes if vote is not None]
    pairs = [(a, b) for index, a in enumerate(present) for b in present[index + 1 :]]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0
