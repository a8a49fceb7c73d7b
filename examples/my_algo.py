"""An algorithm of one's own: only what people liked, pushed up a little.

openclaw-rl serve --algo my_algo:PraiseOnly
"""

from collections.abc import Sequence

import numpy as np

from openclaw_rl.algo.losses import SURROGATE
from openclaw_rl.types import Batch, BatchItem, Json, Lesson, Sample, Scorer


class PraiseOnly:
    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        if lesson.verdict.score <= 0:
            return None
        tokens = lesson.turn.tokens
        return Sample(
            ids_NK=np.array([[token.id] for token in tokens], np.int32),
            old_NK=np.array([[token.logprob] for token in tokens], np.float32),
            signal_NK=np.array([[0.0 if token.forced else 0.3] for token in tokens], np.float32),
        )

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        state["praised"] = state.get("praised", 0) + len(items)  # kept with the weights
        return Batch(items, SURROGATE)
