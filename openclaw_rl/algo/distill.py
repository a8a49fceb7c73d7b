"""Self-distillation in the style of SDFT and SDPO: match the hinted teacher's whole distribution.

Reverse KL over k + 1 bins: the student's k likeliest tokens, and one for everything else. The signal
is the teacher's log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from openclaw_rl.algo.base import example, free, sampled, student_top
from openclaw_rl.algo.hints import HintOptions, teach
from openclaw_rl.types import NO_SIGNAL, Batch, Example, Json, Lesson, Needs, Scorer


@dataclass(frozen=True)
class Distill(HintOptions):
    top_k: Annotated[int, Ge(1)] = 20
    """The student's candidates at each position, at most as many as the turn recorded."""
    needs = Needs(loss="reverse-kl", scores=True)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        turn = lesson.turn
        # By default a turn records only a few candidates.
        k = min(self.top_k, *(len(token.top_ids) for token in turn.tokens))
        ids, old = student_top(turn, k)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return []
        first_ids, first_old = sampled(turn)
        signal = np.where(free(turn) > 0, taught.logprobs_NK, NO_SIGNAL)
        return [
            example(
                lesson,
                np.concatenate([first_ids, ids], axis=1),
                np.concatenate([first_old, old], axis=1),
                np.concatenate([np.full_like(first_old, NO_SIGNAL), signal], axis=1),
                hint=taught.hint,
            )
        ]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss)
