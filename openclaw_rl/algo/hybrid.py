"""The two signals together, chosen by what was said (``Hybrid``) or added up as published (``HybridSum``).

``Hybrid`` distils the hint of a complaint (centred top-k) and pushes accepted replies up. It
never pushes a reply down as a whole: that says nothing about what to do instead, and was measured to
hurt. The step is scaled by the share of complaints, so that a nearly satisfied user does not make the
optimizer amplify what little is left, and by the root of the number of samples up to eight: Adam's steps are
as long for a few noisy samples as for many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from openclaw_rl.algo.base import VerdictOptions, example, free, join, sampled, verdict_example
from openclaw_rl.algo.binary import published_examples
from openclaw_rl.algo.hints import TopKOptions, teach
from openclaw_rl.algo.opd import top_k_examples
from openclaw_rl.types import NOT_RECORDED, Batch, Example, Json, Lesson, Needs, Scorer

#: How much of a reason to take a step an accepted reply is, beside a complaint's 1.
_ACCEPTED_STRENGTH = 0.05
_ENOUGH_SAMPLES = 8
#: How many nats less likely than the teacher's own choice a token of a retold reply may be.
_FITS = 3.0


@dataclass(frozen=True)
class Hybrid(TopKOptions, VerdictOptions):
    teacher_k: Annotated[int, Ge(0), Le(8)] = 2
    """Tokens of the hinted teacher's own that are taught where the student did not think of them."""
    accepted_weight: Annotated[float, Ge(0)] = 1.0
    """Of rl_weight, what accepted replies get."""
    retell: bool = True
    """A reply accepted after a complaint is taught as the answer to the question before it."""
    least_scale: Annotated[float, Ge(0)] = 0.05
    """Of the learning rate, for a batch without any complaint."""
    needs = Needs(batch_size=2, replay=4, scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        verdict = lesson.verdict
        if verdict.score > 0:
            if self.retell and lesson.corrected is not None:
                retold = await self._retold(lesson, lesson.corrected, scorer)
                if retold is not None:
                    return [retold]
            return [verdict_example(lesson, self, self._accepted(lesson), _ACCEPTED_STRENGTH)]
        if not verdict.hints:
            return []
        return await top_k_examples(lesson, scorer, self, centred=True, teacher_k=self.teacher_k)

    def _accepted(self, lesson: Lesson) -> float:
        return self.accepted_weight * lesson.verdict.confidence

    async def _retold(self, lesson: Lesson, first: Lesson, scorer: Scorer) -> Example | None:
        """The reply that was accepted after a complaint, as the answer to what was asked before it.

        Only what the teacher might say who knows the hint, but was not complained to: no apologies.
        """
        turn = lesson.turn
        ids, old = sampled(turn)
        taught = await teach(replace(first, turn=turn), scorer, ids, self.hint_choice)
        if taught is None:
            return None
        fits = taught.logprobs_NK > taught.top_logprobs_NK[:, :1] - _FITS
        return example(
            lesson,
            ids,
            np.full_like(old, NOT_RECORDED),
            fits * free(turn) * (self.rl_weight * self._accepted(lesson)),
            strength=_ACCEPTED_STRENGTH,
            kind="accepted",
            request=first.turn,
        )

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        complaints = sum(given.source.hint is not None for given in examples) / len(examples)
        trust = min(1.0, math.sqrt(len(examples) / _ENOUGH_SAMPLES))
        return Batch(examples, self.needs.loss, scale=trust * max(self.least_scale, complaints))


@dataclass(frozen=True)
class HybridSum(TopKOptions, VerdictOptions):
    needs = Needs(scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        hinted = await top_k_examples(lesson, scorer, self, centred=False, teacher_k=0)
        parts = [*published_examples(lesson, self), *hinted]
        return [join(parts)] if parts else []

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)
