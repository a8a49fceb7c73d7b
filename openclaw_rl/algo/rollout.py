"""Episodes in environments: several attempts at a task, each step counted by how it compares with the others.

Two terms: the outcome, once for an attempt, and the process, the judge's verdict on each step from what the
environment answered. Each is standardised within the group by itself, so that neither drowns the other,
whatever their scales. Where all attempts went alike there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from openclaw_rl.algo.base import ImportanceOptions, example, free, importance, sampled, standardised
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer, Standing


@dataclass(frozen=True)
class Rollout(ImportanceOptions):
    outcome_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of how an attempt ended, beside the others at its task."""
    process_weight: Annotated[float, Ge(0)] = 0.3
    """Weight of the verdict on a step, beside the others of its group."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Of the learning rate."""
    needs = Needs(batch_size=32)

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
