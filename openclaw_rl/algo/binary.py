"""Binary RL: the verdict as the advantage of every token of the reply.

If a request was answered several times (``n``, or regenerated), the advantage is the verdict's deviation from
the mean of all of them, in standard deviations. Most requests are answered once; for those a running mean of
the user's verdicts is subtracted: without it a user who only complains pushes probability down everywhere,
and the model degenerates. ``reward_baseline=False`` is the method as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.algo.base import VerdictOptions, standardised, verdict_example
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer

#: Number of verdicts that a running mean covers.
_MEMORY = 32


@dataclass(frozen=True)
class Binary(VerdictOptions):
    reward_baseline: bool = True
    """Subtract each user's running mean of verdicts."""
    needs = Needs()

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        verdict = lesson.verdict
        if self.reward_baseline and (
            advantage := standardised(verdict.score, (verdict.score, *lesson.peers))
        ):
            made = verdict_example(lesson, self, advantage * verdict.confidence)
            return [replace(made, source=replace(made.source, compared=True))]
        return published_examples(lesson, self)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        if not self.reward_baseline:
            return Batch(examples, self.needs.loss)
        centred = []
        means: dict[str, list[float]] = state.setdefault("reward_means", {})
        for given in examples:
            if given.source.compared:
                centred.append(given)
                continue
            user, score = given.source.user, given.source.score
            count, mean = means.get(user, (0, 0.0))
            # The signal is the verdict times a token weight; only the verdict is centred.
            centred.append(replace(given, signal_NK=given.signal_NK * ((score - mean) / score)))
            count = min(count + 1, _MEMORY)
            means[user] = [count, mean + (score - mean) / count]
        return Batch(centred, self.needs.loss)


def published_examples(lesson: Lesson, options: VerdictOptions) -> list[Example]:
    """Without any baseline: the verdict times the judge's confidence."""
    verdict = lesson.verdict
    if not verdict.score:
        return []
    return [verdict_example(lesson, options, verdict.score * verdict.confidence)]
