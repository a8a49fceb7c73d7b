"""Self-distillation in the manner of SDFT and SDPO: match the hinted teacher's whole distribution.

Reverse KL over k + 1 bins: the student's k likeliest tokens, and one for everything else. The signal
is the teacher's log-probs themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_rl.algo.base import free, student_top
from openclaw_rl.algo.hints import Choice, teach
from openclaw_rl.algo.losses import NO_SIGNAL, TAIL_KL, TailKL
from openclaw_rl.types import Batch, BatchItem, Json, Lesson, Sample, Scorer


@dataclass(frozen=True)
class Distill:
    top_k: int = 20
    hint_choice: Choice = "sequence"
    loss: TailKL = TAIL_KL

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        turn = lesson.turn
        # A turn keeps a few alternatives by default; as many as it has are used.
        k = min(self.top_k, *(len(token.top_ids) for token in turn.tokens))
        ids, old = student_top(turn, k)
        taught = await teach(lesson, scorer, ids, self.hint_choice)
        if taught is None:
            return None
        first_ids = np.array([[token.id] for token in turn.tokens], np.int32)
        first_old = np.array([[token.logprob] for token in turn.tokens], np.float32)
        chosen = free(turn) > 0
        return Sample(
            np.concatenate([first_ids, ids], axis=1),
            np.concatenate([first_old, old], axis=1),
            np.concatenate(
                [np.full_like(first_old, NO_SIGNAL), np.where(chosen, taught.logprobs_NK, NO_SIGNAL)], axis=1
            ),
            hint=taught.hint,
        )

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        return Batch(items, self.loss)
