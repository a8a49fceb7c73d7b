"""The two signals together. ``Hybrid`` is the default, ``HybridSum`` the published sum.

``Hybrid`` distils the hint of a complaint (centred top-k) and pushes accepted replies up. It
never pushes a reply down as a whole: that says nothing about what to do instead, and was measured to
hurt. The step is scaled by the share of complaints, so that a nearly satisfied user does not make the
optimizer amplify what little is left, and by the root of the number of samples up to eight: Adam's steps are
as long for a few noisy samples as for many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openclaw_rl.algo.base import example, free, join, sampled
from openclaw_rl.algo.binary import Binary
from openclaw_rl.algo.hints import teach
from openclaw_rl.algo.opd import OpdTopK
from openclaw_rl.types import NOT_RECORDED, Batch, Example, Json, Lesson, Needs, Scorer

#: How much of a reason to take a step an accepted reply is, beside a complaint's 1.
_ACCEPTED_STRENGTH = 0.05
_ENOUGH_SAMPLES = 8
#: How many nats less likely than the teacher's own choice a token of a retold reply may be.
_FITS = 3.0


@dataclass(frozen=True)
class Hybrid:
    teaching: OpdTopK = field(default_factory=lambda: OpdTopK(centred=True, teacher_k=2))
    accepting: Binary = field(default_factory=Binary)
    retell: bool = True
    least_scale: float = 0.05
    needs = Needs(batch_size=2, replay=4, scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        verdict = lesson.verdict
        if verdict.score > 0:
            if self.retell and lesson.corrected is not None:
                retold = await self._retold(lesson, lesson.corrected, scorer)
                if retold is not None:
                    return [retold]
            return [self.accepting.signal(lesson, verdict.confidence, _ACCEPTED_STRENGTH)]
        return await self.teaching.examples(lesson, scorer) if verdict.hints else []

    async def _retold(self, lesson: Lesson, first: Lesson, scorer: Scorer) -> Example | None:
        """The reply that was accepted after a complaint, as the answer to what was asked before it.

        Only what the teacher might say who knows the hint, but was not complained to: no apologies.
        """
        turn = lesson.turn
        ids, old = sampled(turn)
        taught = await teach(replace(first, turn=turn), scorer, ids, self.teaching.hint_choice)
        if taught is None:
            return None
        fits = taught.logprobs_NK > taught.top_logprobs_NK[:, :1] - _FITS
        return example(
            lesson,
            ids,
            np.full_like(old, NOT_RECORDED),
            fits * free(turn) * (self.accepting.weight * lesson.verdict.confidence),
            strength=_ACCEPTED_STRENGTH,
            kind="accepted",
            request=first.turn,
        )

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        complaints = sum(given.source.hint is not None for given in examples) / len(examples)
        trust = min(1.0, math.sqrt(len(examples) / _ENOUGH_SAMPLES))
        return Batch(examples, self.needs.loss, scale=trust * max(self.least_scale, complaints))


@dataclass(frozen=True)
class HybridSum:
    evaluating: Binary = field(default_factory=lambda: Binary(baseline=False))
    teaching: OpdTopK = field(default_factory=OpdTopK)

    needs = Needs(scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        parts = await self.evaluating.examples(lesson, scorer) + await self.teaching.examples(lesson, scorer)
        return [join(parts)] if parts else []

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)
