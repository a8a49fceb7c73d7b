"""Binary RL: the verdict itself, on every token of the reply.

With one reply per prompt there is no group to compare with, so a running mean of each user's verdicts
is subtracted: without it a user who only ever complains pushes probability down everywhere, and the
model learns nothing but to fall apart. ``baseline=False`` is the method as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.algo.base import free, importance, sampled
from openclaw_rl.algo.losses import SURROGATE, Surrogate
from openclaw_rl.types import Batch, BatchItem, Json, Lesson, Sample, Scorer

#: Verdicts a running mean looks back on.
_MEMORY = 32


@dataclass(frozen=True)
class Binary:
    weight: float = 1.0
    importance_cap: float = 2.0
    baseline: bool = True
    loss: Surrogate = SURROGATE

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        verdict = lesson.verdict
        return self.signal(lesson, verdict.score * verdict.confidence) if verdict.score else None

    def signal(self, lesson: Lesson, advantage: float) -> Sample:
        turn = lesson.turn
        ids, old = sampled(turn)
        return Sample(
            ids, old, free(turn) * importance(turn, self.importance_cap) * (self.weight * advantage)
        )

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        if not self.baseline:
            return Batch(items, self.loss)
        centred = []
        means: dict[str, list[float]] = state.setdefault("reward_means", {})
        for item in items:
            count, mean = means.get(item.turn.user, (0, 0.0))
            # The signal is the verdict times what a token may count; only the verdict is centred.
            factor = (item.score - mean) / item.score
            centred.append(
                replace(item, sample=replace(item.sample, signal_NK=item.sample.signal_NK * factor))
            )
            count = min(count + 1, _MEMORY)
            means[item.turn.user] = [count, mean + (item.score - mean) / count]
        return Batch(centred, self.loss)
