"""A custom algorithm: reinforces replies that users liked, and ignores the rest.

openclaw-rl serve --algo my_algo:PraiseOnly
"""

from collections.abc import Sequence

import numpy as np

from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer, Source


class PraiseOnly:
    needs = Needs(loss="clipped-surrogate", batch_size=4)

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        turn, score = lesson.turn, lesson.verdict.score
        if score <= 0:
            return []
        return [
            Example(
                prompt_ids=turn.prompt_ids,
                reply_ids=[token.id for token in turn.tokens],
                ids_NK=np.array([[token.id] for token in turn.tokens], np.int32),
                old_NK=np.array([[token.logprob] for token in turn.tokens], np.float32),
                signal_NK=np.array([[0.0 if token.forced else 0.3] for token in turn.tokens], np.float32),
                source=Source("own", (turn.id,), turn.user, score, policy_version=turn.policy_version),
                num_free=sum(not token.forced for token in turn.tokens),
            )
        ]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        state["praised"] = state.get("praised", 0) + len(examples)  # saved with the weights
        return Batch(examples, self.needs.loss)
