"""Hindsight-guided on-policy distillation: what the model would have said, had it known the hint.

The teacher is the same model with the user's correction in its prompt. ``Opd`` compares the two on the
sampled tokens; ``OpdTopK`` on the student's k likeliest tokens at each position, weighted by the student's
probabilities, which needs a third of the samples.

If the hinted teacher would say something that the student did not consider at all ("1." where a paragraph
began), none of the student's candidates leads there. ``teacher_k`` therefore adds the teacher's own likeliest
tokens if they are missing, weighted by the teacher's probabilities.

If ``centred``, the signals at a position add up to zero: probability then moves among the candidates instead
of leaking out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from openclaw_rl.algo.base import ImportanceOptions, example, free, importance, sampled, student_top
from openclaw_rl.algo.hints import GapOptions, Taught, TopKOptions, teach
from openclaw_rl.types import (
    NOT_RECORDED,
    Batch,
    Example,
    FloatArray,
    IntArray,
    Json,
    Lesson,
    Needs,
    Scorer,
    TurnRecord,
)


@dataclass(frozen=True)
class Opd(GapOptions, ImportanceOptions):
    centred: bool = False
    """Make the signals on a reply add up to zero."""
    needs = Needs(scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        turn = lesson.turn
        ids, old = sampled(turn)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return []
        chosen = free(turn)
        gap = np.clip(taught.logprobs_NK - old, -self.gap_clip, self.gap_clip) * chosen
        if self.centred:
            gap = (gap - gap.sum() / max(1.0, chosen.sum())) * chosen
        weight = self.opd_weight * lesson.verdict.confidence
        signal = gap * importance(turn, self.importance_cap) * weight
        return [example(lesson, ids, old, signal, hint=taught.hint)]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)


@dataclass(frozen=True)
class OpdTopK(TopKOptions):
    centred: bool = False
    """Make the signals at each position add up to zero."""
    teacher_k: Annotated[int, Ge(0), Le(8)] = 0
    """The hinted teacher's likeliest tokens to add as candidates if the student's lack them."""
    needs = Needs(scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        return await top_k_examples(lesson, scorer, self, self.centred, self.teacher_k)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)


async def top_k_examples(
    lesson: Lesson, scorer: Scorer, options: TopKOptions, centred: bool, teacher_k: int
) -> list[Example]:
    turn = lesson.turn
    ids, old = student_top(turn, options.top_k)
    taught = await teach(lesson, scorer, ids, options.hint_choice)
    if taught is None:
        return []
    share = np.exp(old - old.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    candidates = [(ids, old, share, taught.logprobs_NK - old)]
    if teacher_k:
        candidates.append(_of_teacher(turn, ids, taught, teacher_k))
    ids, old, share, gap = (np.concatenate(columns, axis=1) for columns in zip(*candidates, strict=True))
    signal = share * np.clip(gap, -options.gap_clip, options.gap_clip)
    if centred:
        signal -= share * signal.sum(axis=1, keepdims=True) / share.sum(axis=1, keepdims=True)
    signal *= free(turn) * (options.opd_weight * lesson.verdict.confidence)
    # Every example has the sampled token in its first column, here without a signal.
    first_ids, first_old = sampled(turn)
    return [
        example(
            lesson,
            np.concatenate([first_ids, ids], axis=1),
            np.concatenate([first_old, old], axis=1),
            np.concatenate([np.zeros_like(first_old), signal], axis=1),
            hint=taught.hint,
        )
    ]


def _of_teacher(
    turn: TurnRecord, ids_NK: IntArray, taught: Taught, k: int
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """The teacher's tokens that are not among the student's: ids, old log-probs, weights, gaps.

    A turn records few candidates; an unrecorded one was less likely than the last of them.
    """
    ids, own = taught.top_ids_NK[:, :k], taught.top_logprobs_NK[:, :k]
    recorded = [dict(zip(token.top_ids, token.top_logprobs, strict=True)) for token in turn.tokens]
    pairs = list(zip(ids.tolist(), recorded, strict=True))
    old = np.array([[known.get(i, NOT_RECORDED) for i in row] for row, known in pairs], np.float32)
    least = np.array([[min(known.values())] for known in recorded], np.float32)
    is_new = (ids[:, :, None] != ids_NK[:, None, :]).all(axis=2)
    return ids, old, np.exp(own) * is_new, own - np.where(old > 0, least, old)
