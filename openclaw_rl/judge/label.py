"""``LabelJudge``: verdicts from a small model by label log-probs and a fitted calibration.

Each vote scores the case after a different few-shot set and has its own calibration, since scoring the
same prompt twice gives the same numbers. A vote's evidence is the label log-probs, how an assistant would
continue (for user messages), countable cues, and the model's hidden states in a middle layer. ``probe.json``
holds the weights for all of it, ``calibration.json`` those without hidden states, for engines that do not
expose them. ``fitted.py`` checks which model they belong to. Both are fitted on the train half by
``python -m openclaw_rl.evals.fit_judge``.

A turn without a next state is marked untrainable: nothing was fitted to judge a reply alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain

from openclaw_rl.config import JudgeConfig
from openclaw_rl.judge.calibration import CLASSES, Calibration
from openclaw_rl.judge.cues import tool_cues, user_cues
from openclaw_rl.judge.evidence import Evidence
from openclaw_rl.judge.exchange import CaseTexts
from openclaw_rl.judge.fitted import Fitted, read_fitted
from openclaw_rl.judge.hints import verbatim_hints
from openclaw_rl.judge.shots import NUM_SETS
from openclaw_rl.judge.voting import majority
from openclaw_rl.types import Engine, JudgeCase, JudgeError, Renderer, Verdict

Probabilities = tuple[float, float, float]
log = logging.getLogger(__name__)


def kind_of(exchange: CaseTexts) -> str:
    """A user's message decides if there is one; otherwise the tool results do."""
    return "user" if exchange.has_user else "tool"


async def features(evidence: Evidence, exchange: CaseTexts, numbers: list[int]) -> list[list[float]]:
    """The evidence for each of the given few-shot sets."""
    kind = kind_of(exchange)
    words = await asyncio.gather(*(evidence.words(kind, number, exchange) for number in numbers))
    shared = (
        [*(await evidence.chat(exchange)), *user_cues(exchange)] if kind == "user" else tool_cues(exchange)
    )
    return [[*row, *shared] for row in words]


async def states(evidence: Evidence, exchange: CaseTexts, numbers: list[int]) -> list[list[list[float]]]:
    """The model's hidden states for each of the given few-shot sets."""
    return [await evidence.states(kind_of(exchange), number, exchange) for number in numbers]


class LabelJudge:
    """Judge protocol over ``Engine.score``; no rules of its own."""

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[str], list[int]],
        renderer: Renderer,
        settings: JudgeConfig = JudgeConfig(),
        fitted: Fitted | None = None,
    ) -> None:
        """``encode`` returns the token ids of plain text, without special tokens.

        ``fitted`` must belong to the engine's model; the default is the default model's.
        """
        num_votes = settings.majority_vote_n
        if num_votes > NUM_SETS:
            raise ValueError(
                f"the label judge has {NUM_SETS} few-shot sets: 1 to {NUM_SETS} votes, got {num_votes}"
            )
        self._fitted = fitted or read_fitted()
        self._evidence = Evidence(engine, encode, renderer, self._fitted.layer)
        self._numbers = list(range(1, num_votes + 1))
        self._threshold = settings.majority_vote_threshold
        self._uses_states = True

    async def evaluate(self, case: JudgeCase) -> Verdict:
        if not case.next_state:
            return Verdict(
                0,
                0.0,
                "votes",
                trainable=False,
                reason="the session ended with this reply; a small model cannot judge a reply alone",
            )
        votes = await self.probabilities(case)
        scores = tuple(CLASSES[vote.index(max(vote))] for vote in votes)
        score = majority(scores, self._threshold)
        confidence = sum(vote[CLASSES.index(score)] for vote in votes) / len(votes)
        return Verdict(
            score,
            round(confidence, 4),
            "votes",
            votes=scores,
            hints=verbatim_hints(case) if score < 0 else (),
            reason=f"{scores.count(score)} of {len(scores)} votes",
        )

    async def probabilities(self, case: JudgeCase) -> list[Probabilities]:
        """Each vote's calibrated probabilities of +1, 0 and −1."""
        exchange = CaseTexts(case)
        try:
            rows = await features(self._evidence, exchange, self._numbers)
            shown = await states(self._evidence, exchange, self._numbers) if self._uses_states else []
        except (RuntimeError, OSError, ValueError) as error:
            raise JudgeError(f"the engine could not score the case: {error}") from error
        kind = kind_of(exchange)
        if self._uses_states:
            full = [[*row, *chain.from_iterable(state)] for row, state in zip(rows, shown, strict=True)]
            if len(full[0]) == len(self._fitted.full[kind][0].mean_F):
                return self._calibrated(self._fitted.full[kind], full)
            log.warning("the engine exposes no hidden states of the fitted model; judging without them")
            self._uses_states = False
        return self._calibrated(self._fitted.plain[kind], rows)

    def _calibrated(self, fitted: list[Calibration], rows: list[list[float]]) -> list[Probabilities]:
        return [
            fitted[number - 1].probabilities(row) for number, row in zip(self._numbers, rows, strict=True)
        ]

    async def close(self) -> None:
        """Does not close the engine, which belongs to the caller."""
