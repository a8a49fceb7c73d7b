"""Training examples made without an algorithm."""

from __future__ import annotations

from openclaw_rl.algo.base import example
from openclaw_rl.types import Example, FloatArray, IntArray, Lesson, TurnRecord, Verdict


def make_example(
    turn: TurnRecord, score: int, ids_NK: IntArray, old_NK: FloatArray, signal_NK: FloatArray
) -> Example:
    """The turn's own reply, with the given signal."""
    return example(Lesson(turn, Verdict(score, 1.0, "test"), lambda hint: None), ids_NK, old_NK, signal_NK)
