"""Episodes in environments: several attempts at a task, each step counted by how it compares with the others.

Two terms: the outcome, once for an attempt, and the process, the judge's verdict on each step from what the
environment answered. Each is standardised within the group by itself, so that neither drowns the other,
whatever their scales. Where all attempts went alike there is nothing to learn.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.algo.base import example, free, importance, sampled
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer, Standing


@dataclass(frozen=True)
class Rollout:
    outcome_weight: float = 1.0
    process_weight: float = 0.3
    importance_cap: float = 2.0
    batch_size: int = 32
    scale: float = 1.0
    """Of the learning rate."""

    @property
    def needs(self) -> Needs:
        return Needs(batch_size=self.batch_size)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        if lesson.standing is None:
            raise ValueError("this method compares attempts at a task; use another --algo for conversations")
        if not (advantage := self.advantage(lesson.standing)):
            return []
        ids, old = sampled(lesson.turn)
        counts = free(lesson.turn) * importance(lesson.turn, self.importance_cap)
        return [example(lesson, ids, old, counts * advantage, kind="rollout")]

    def advantage(self, standing: Standing) -> float:
        outcome = standardised(standing.reward, standing.rewards)
        process = 0.0 if standing.process is None else standardised(standing.process, standing.processes)
        return self.outcome_weight * outcome + self.process_weight * process

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss, scale=self.scale)


def standardised(value: float, group: Sequence[float]) -> float:
    """How far it is from the group's mean, in standard deviations; 0 where all are alike."""
    spread = statistics.pstdev(group) if len(group) > 1 else 0.0
    return (value - statistics.fmean(group)) / spread if spread else 0.0
