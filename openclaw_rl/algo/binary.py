"""Binary RL: the verdict itself, on every token of the reply.

Where a request was answered several times (``n``, or asked once more), a verdict counts by how far it is from
the mean of all of them, in standard deviations. Most requests are answered once; there a running mean of each
user's verdicts is subtracted: without it a user who only ever complains pushes probability down everywhere,
and the model learns nothing but to fall apart. ``reward_baseline=False`` is the method as
published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.algo.base import VerdictOptions, standardised, verdict_example
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer

#: Verdicts a running mean looks back on.
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
            # The signal is the verdict times what a token may count; only the verdict is centred.
            centred.append(replace(given, signal_NK=given.signal_NK * ((score - mean) / score)))
            count = min(count + 1, _MEMORY)
            means[user] = [count, mean + (score - mean) / count]
        return Batch(centred, self.needs.loss)


def published_examples(lesson: Lesson, options: VerdictOptions) -> list[Example]:
    """Without any comparison: the verdict, times the judge's confidence."""
    verdict = lesson.verdict
    if not verdict.score:
        return []
    return [verdict_example(lesson, options, verdict.score * verdict.confidence)]
