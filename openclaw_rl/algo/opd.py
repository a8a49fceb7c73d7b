"""Hindsight-guided on-policy distillation: what the model would have said, had it known the hint.

The teacher is the same model with the user's correction in its prompt. ``Opd`` compares the two on the
sampled tokens; ``OpdTopK`` on the k likeliest tokens of the student at each position, weighted by how
likely the student held them, which needs a third of the samples.

Centred, a position's pushes add up to zero, each taking its share back: probability then moves among
the student's own candidates, and none is driven out of them without a place to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_rl.algo.base import free, importance, sampled, student_top
from openclaw_rl.algo.hints import Choice, teach
from openclaw_rl.algo.losses import SURROGATE, Surrogate
from openclaw_rl.types import Batch, BatchItem, Json, Lesson, Sample, Scorer


@dataclass(frozen=True)
class Opd:
    gap_clip: float = 1.0
    weight: float = 1.0
    centred: bool = False
    importance_cap: float = 2.0
    hint_choice: Choice = "sequence"
    loss: Surrogate = SURROGATE

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        turn = lesson.turn
        ids, old = sampled(turn)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return None
        chosen = free(turn)
        gap = np.clip(taught.logprobs_NK - old, -self.gap_clip, self.gap_clip) * chosen
        if self.centred:
            gap = (gap - gap.sum() / max(1.0, chosen.sum())) * chosen
        weight = self.weight * lesson.verdict.confidence
        return Sample(ids, old, gap * importance(turn, self.importance_cap) * weight, hint=taught.hint)

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        return Batch(items, self.loss)


@dataclass(frozen=True)
class OpdTopK:
    top_k: int = 4
    gap_clip: float = 1.0
    weight: float = 1.0
    centred: bool = False
    hint_choice: Choice = "sequence"
    loss: Surrogate = SURROGATE

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        turn = lesson.turn
        ids, old = student_top(turn, self.top_k)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return None
        share = np.exp(old - old.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        signal = share * np.clip(taught.logprobs_NK - old, -self.gap_clip, self.gap_clip)
        if self.centred:
            signal -= share * signal.sum(axis=1, keepdims=True)
        weight = self.weight * lesson.verdict.confidence
        # The sampled token leads, with no signal of its own: every sample has it in the first column.
        first_ids, first_old = sampled(turn)
        return Sample(
            np.concatenate([first_ids, ids], axis=1),
            np.concatenate([first_old, old], axis=1),
            np.concatenate([np.zeros_like(first_old), signal * free(turn) * weight], axis=1),
            hint=taught.hint,
        )

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        return Batch(items, self.loss)
