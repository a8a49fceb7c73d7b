"""Episodes in environments: several attempts at a task, with group-relative advantages for each step.

Two terms: the outcome, one per attempt, and the process, the judge's verdict on each step from the
environment's response. Each is standardised within the group separately, so that neither drowns the other,
whatever their scales. If all attempts score the same there is nothing to learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from openclaw_rl.algo.base import ImportanceOptions, example, free, importance, sampled, standardised
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer, Standing


@dataclass(frozen=True)
class Rollout(ImportanceOptions):
    outcome_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of an attempt's reward relative to its group."""
    process_weight: Annotated[float, Ge(0)] = 0.3
    """Weight of a step's verdict relative to its group."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Factor of the learning rate."""
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
        """Few samples point in a noisy direction, and the optimizer's steps are equally long for all."""
        share = min(1.0, len(examples) / self.needs.batch_size)
        return Batch(examples, self.needs.loss, scale=self.scale * math.sqrt(share))
