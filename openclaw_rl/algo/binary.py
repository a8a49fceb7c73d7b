"""Binary RL: the verdict itself, on every token of the reply.

Where a request was answered several times (``n``, or asked once more), a verdict counts by how far it is from
the mean of all of them, in standard deviations. Most requests are answered once; there a running mean of each
user's verdicts is subtracted: without it a user who only ever complains pushes probability down everywhere,
and the model learns nothing but to fall apart. ``baseline=False`` is the method as published.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.algo.base import example, free, importance, sampled
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer

#: Verdicts a running mean looks back on.
_MEMORY = 32


@dataclass(frozen=True)
class Binary:
    weight: float = 1.0
    importance_cap: float = 2.0
    baseline: bool = True
    needs = Needs()

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        verdict = lesson.verdict
        if self.baseline and (advantage := standardised(verdict.score, lesson.peers)):
            made = self.signal(lesson, advantage * verdict.confidence)
            return [replace(made, source=replace(made.source, compared=True))]
        return [self.signal(lesson, verdict.score * verdict.confidence)] if verdict.score else []

    def signal(self, lesson: Lesson, advantage: float, strength: float = 1.0) -> Example:
        turn = lesson.turn
        ids, old = sampled(turn)
        counts = free(turn) * importance(turn, self.importance_cap)
        return example(lesson, ids, old, counts * (self.weight * advantage), strength=strength)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        if not self.baseline:
            return Batch(examples, self.needs.loss)
        centred = []
        means: dict[str, list[float]] = state.setdefault("reward_means", {})
        for given in examples:
            if given.source.compared:
                centred.append(given)
                continue
            user, score = given.source.user, given.source.score
            count, mean = means.get(user, (0, 0.0))
            # The signal is the verdict times what a token may count; only the verdict is centred.
            centred.append(replace(given, signal_NK=given.signal_NK * ((score - mean) / score)))
            count = min(count + 1, _MEMORY)
            means[user] = [count, mean + (score - mean) / count]
        return Batch(centred, self.needs.loss)


def standardised(score: int, peers: Sequence[int]) -> float:
    """How far a verdict is from the mean of its group; 0 where all of it are alike."""
    group = [score, *peers]
    spread = statistics.pstdev(group)
    return (score - statistics.fmean(group)) / spread if spread else 0.0
