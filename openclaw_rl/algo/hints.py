"""Which hint to distil, and what the teacher says with it.

A hint that makes the teacher prefer what the student would never consider teaches little: the signal is on
the student's own likeliest tokens. So of several hints, the one is used under which teacher and student agree
most about the next token (largest overlap of their top-k sets), over the whole reply or at each position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from openclaw_rl.types import FloatArray, IntArray, Lesson, Scorer, Teaching

Choice = Literal["sequence", "token"]
_MAX_HINTS = 3


@dataclass(frozen=True, kw_only=True)
class HintOptions:
    hint_choice: Choice = "sequence"
    """Choose among several hints the best for the whole reply (sequence), or for each position (token)."""


@dataclass(frozen=True, kw_only=True)
class GapOptions(HintOptions):
    """Options of algorithms that learn from the gap between hinted teacher and student."""

    gap_clip: Annotated[float, Gt(0)] = 1.0
    """Bound of the gap between teacher and student, in nats."""
    opd_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the distilled hint."""


@dataclass(frozen=True, kw_only=True)
class TopKOptions(GapOptions):
    top_k: Annotated[int, Ge(1), Le(8)] = 4
    """The student's candidates at each position."""


@dataclass(frozen=True, slots=True)
class Taught:
    hint: str
    logprobs_NK: FloatArray
    """The teacher's log-probs of the student's candidates."""
    top_ids_NK: IntArray
    """The teacher's own likeliest tokens."""
    top_logprobs_NK: FloatArray


async def teach(lesson: Lesson, scorer: Scorer, ids_NK: IntArray, choice: Choice) -> Taught | None:
    """The teacher's view of the student's candidates under the best hint; None without a usable hint."""
    reply_ids = [token.id for token in lesson.turn.tokens]
    taught: list[tuple[str, Teaching]] = []
    for hint in lesson.verdict.hints[:_MAX_HINTS]:
        prompt_ids = lesson.hinted(hint)
        if prompt_ids is not None:
            taught.append((hint, await scorer.score(prompt_ids, reply_ids, ids_NK)))
    if not taught:
        return None
    overlaps_HN = np.stack([overlap(ids_NK, teaching.top_ids_NK) for _, teaching in taught])
    best = int(overlaps_HN.sum(axis=1).argmax())
    choices_N = np.full(len(reply_ids), best) if choice == "sequence" else overlaps_HN.argmax(axis=0)
    rows_N = np.arange(len(reply_ids))
    teachings = [teaching for _, teaching in taught]
    return Taught(
        taught[best][0],
        np.stack([teaching.logprobs_NK for teaching in teachings])[choices_N, rows_N],
        np.stack([teaching.top_ids_NK for teaching in teachings])[choices_N, rows_N],
        np.stack([teaching.top_logprobs_NK for teaching in teachings])[choices_N, rows_N],
    )


def overlap(student_NK: IntArray, teacher_NK: IntArray) -> np.ndarray:
    """How many of the student's likeliest tokens are among the teacher's, per position."""
    shared = student_NK[:, :, None] == teacher_NK[:, None, :]
    return np.asarray(shared.any(axis=2).sum(axis=1))
