"""Hindsight-guided on-policy distillation: what the model would have said, had it known the hint.

The teacher is the same model with the user's correction in its prompt. ``Opd`` compares the two on the
sampled tokens; ``OpdTopK`` on the k likeliest tokens of the student at each position, weighted by how
likely the student held them, which needs a third of the samples.

Where the hinted teacher would say something that the student did not consider at all ("1." where a
paragraph began), none of the student's candidates leads there. ``teacher_k`` therefore adds the teacher's own
likeliest tokens where they are missing, weighted by how likely the teacher holds them.

Centred, a position's pushes add up to zero, each taking its share back: probability then moves among
the student's own candidates, and none is driven out of them without a place to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_rl.algo.base import example, free, importance, sampled, student_top
from openclaw_rl.algo.hints import Choice, Taught, teach
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
class Opd:
    gap_clip: float = 1.0
    weight: float = 1.0
    centred: bool = False
    importance_cap: float = 2.0
    hint_choice: Choice = "sequence"

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
        weight = self.weight * lesson.verdict.confidence
        signal = gap * importance(turn, self.importance_cap) * weight
        return [example(lesson, ids, old, signal, hint=taught.hint)]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)


@dataclass(frozen=True)
class OpdTopK:
    top_k: int = 4
    gap_clip: float = 1.0
    weight: float = 1.0
    centred: bool = False
    hint_choice: Choice = "sequence"
    teacher_k: int = 0

    needs = Needs(scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        turn = lesson.turn
        ids, old = student_top(turn, self.top_k)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return []
        share = np.exp(old - old.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        gap = taught.logprobs_NK - old
        if self.teacher_k:
            more_ids, more_old, more_share, more_gap = self._of_teacher(turn, ids, taught)
            ids, old = np.concatenate([ids, more_ids], axis=1), np.concatenate([old, more_old], axis=1)
            share, gap = np.concatenate([share, more_share], axis=1), np.concatenate([gap, more_gap], axis=1)
        signal = share * np.clip(gap, -self.gap_clip, self.gap_clip)
        if self.centred:
            signal -= share * signal.sum(axis=1, keepdims=True) / share.sum(axis=1, keepdims=True)
        weight = self.weight * lesson.verdict.confidence
        # The sampled token leads, with no signal of its own: every example has it in the first column.
        first_ids, first_old = sampled(turn)
        return [
            example(
                lesson,
                np.concatenate([first_ids, ids], axis=1),
                np.concatenate([first_old, old], axis=1),
                np.concatenate([np.zeros_like(first_old), signal * free(turn) * weight], axis=1),
                hint=taught.hint,
            )
        ]

    def _of_teacher(
        self, turn: TurnRecord, ids_NK: IntArray, taught: Taught
    ) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """The teacher's tokens that are not among the student's: ids, old log-probs, weights, gaps.

        A turn records few candidates; one that is not among them was less likely than the last of them.
        """
        ids = taught.top_ids_NK[:, : self.teacher_k]
        own = taught.top_logprobs_NK[:, : self.teacher_k]
        recorded = [dict(zip(token.top_ids, token.top_logprobs, strict=True)) for token in turn.tokens]
        pairs = list(zip(ids.tolist(), recorded, strict=True))
        old = np.array([[known.get(i, NOT_RECORDED) for i in row] for row, known in pairs], np.float32)
        least = np.array([[min(known.values())] for known in recorded], np.float32)
        is_new = (ids[:, :, None] != ids_NK[:, None, :]).all(axis=2)
        return ids, old, np.exp(own) * is_new, own - np.where(old > 0, least, old)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)
