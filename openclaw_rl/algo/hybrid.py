"""Verdict and hint combined: chosen by the verdict (``Hybrid``), or added up as published (``HybridSum``).

``Hybrid`` distils the hint of a complaint (centred top-k) and makes accepted replies likelier. It never
makes a whole reply less likely: that says nothing about what to do instead, and hurt in our measurements.
The step is scaled by the share of complaints, so that for a nearly satisfied user the optimizer does not
amplify what little is left, and by the square root of the number of samples, up to eight: Adam's steps are as
long for a few noisy samples as for many.
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

#: Signal of an accepted reply toward the next step; a complaint's is 1.
_ACCEPTED_STRENGTH = 0.05
_ENOUGH_SAMPLES = 8
#: A token of a retold reply may be this many nats less likely than the teacher's own choice.
_FITS = 3.0


@dataclass(frozen=True)
class Hybrid(TopKOptions, VerdictOptions):
    teacher_k: Annotated[int, Ge(0), Le(8)] = 2
    """The hinted teacher's likeliest tokens to add as candidates if the student's lack them."""
    accepted_weight: Annotated[float, Ge(0)] = 1.0
    """Share of rl_weight that accepted replies get."""
    retell: bool = True
    """Teach a reply accepted after a complaint as the answer to the original request."""
    least_scale: Annotated[float, Ge(0)] = 0.05
    """Factor of the learning rate for a batch without complaints."""
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
        """A reply accepted after a complaint, as the answer to the original request.

        Only tokens that the hinted teacher might say without having seen the complaint: no apologies.
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
