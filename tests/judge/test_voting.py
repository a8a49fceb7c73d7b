from __future__ import annotations

import pytest

from openclaw_rl.judge.voting import agreement, majority
from openclaw_rl.types import JudgeError


@pytest.mark.parametrize(
    ("votes", "threshold", "score"),
    [
        ([1, 1, 1], 0.5, 1),
        ([1, 1, -1], 0.5, 1),
        ([1, 0, -1], 0.5, 0),
        ([1, -1], 0.5, 0),
        ([-1, None, None], 0.5, -1),
        ([1, 1, None, -1, -1], 0.5, 0),
        ([1, 1, -1], 0.7, 0),
        ([1, 1, 1, -1], 0.7, 1),
        ([1, -1, 0], 0.3, 0),
        ([1, 1, -1], 0.3, 1),
    ],
)
def test_majority(votes: list[int | None], threshold: float, score: int) -> None:
    assert majority(votes, threshold) == score


def test_no_votes_are_no_verdict() -> None:
    with pytest.raises(JudgeError):
        majority([None, None], 0.5)


def test_a_threshold_that_nothing_can_pass_is_refused() -> None:
    with pytest.raises(ValueError):
        majority([1], 1.0)


def test_agreement() -> None:
    assert agreement([1, 1, -1]) == pytest.approx(1 / 3)
    assert agreement([1, None]) == 1.0
