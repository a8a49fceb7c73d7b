"""Evidence from a small language model: label log-probs after a few examples.

A small model cannot follow a judge's instructions, but the log-probs of label words after a handful of
solved examples separate the classes well once they are calibrated. Each few-shot set is a constant prefix
that the engine caches, so a call costs only the tokens of the case.

``chat`` measures how an assistant would continue after the user's words: it thanks, apologises, or simply
answers. ``states`` are the model's hidden states in a middle layer at these positions; they hold more
information than the log-probs, if the engine exposes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openclaw_rl.judge.exchange import CaseTexts, shorten
from openclaw_rl.judge.shots import CONTEXT_CHARS, STATE_CHARS, few_shot_set, state_prompts
from openclaw_rl.types import Engine, Renderer, ScoreRequest, Scores

Encode = Callable[[str], list[int]]
_TOP_K = 1000
_NUM_KNOWN = 512
#: How an assistant typically starts after praise, after a complaint, after the next question.
CONTINUATIONS = ("You're welcome", "I'm glad", "I apologize", "I'm sorry", "Sure, here", "You're right")


class Evidence:
    """Queries an engine; knows nothing about verdicts."""

    def __init__(self, engine: Engine, encode: Encode, renderer: Renderer, layer: int) -> None:
        """``layer`` (from 0) is the layer whose hidden states are read."""
        self._engine, self._encode, self._renderer, self._layer = engine, encode, renderer, layer
        # Cached: kernels round differently with the batch, and the same text must get the same verdict.
        self._known: dict[tuple[tuple[int, ...], int, int], Scores] = {}

    async def words(self, kind: str, number: int, exchange: CaseTexts) -> list[float]:
        """Log-probs of the set's words at the label position, minus their mean.

        The words include the labels and related words, which add information.
        """
        word_ids = [self._encode(" " + word)[0] for word in few_shot_set(kind, number).words]
        scores = await self._score_label(kind, number, exchange)
        found = dict(zip(scores.top_ids[0], scores.top_logprobs[0], strict=True))
        floor = min(scores.top_logprobs[0]) - 0.5
        values = [found.get(word_id, floor) for word_id in word_ids]
        mean = sum(values) / len(values)
        return [value - mean for value in values]

    async def chat(self, exchange: CaseTexts) -> list[float]:
        """Mean log-prob of each stock continuation, minus their mean."""
        prompt = self._chat_prompt(exchange)
        first, *others = [self._encode(text) for text in CONTINUATIONS]
        values = [await self._mean_logprob(prompt, first)]  # fills the prefix cache for the others
        values += await asyncio.gather(*(self._mean_logprob(prompt, ids) for ids in others))
        mean = sum(values) / len(values)
        return [value - mean for value in values]

    async def states(self, kind: str, number: int, exchange: CaseTexts) -> list[list[float]]:
        """Hidden states where the label, an assistant's next turn or a summary would start; may be empty."""
        if not self._engine.capabilities.hidden_states:
            return []
        prompts = [self._chat_prompt(exchange)]
        for prefix, text in state_prompts(kind, number, exchange):
            prompts.append([*self._encode(prefix), *self._encode(text)])
        scores = [await self._score_label(kind, number, exchange)]
        # Which token is appended does not matter: the state is the one that predicts it.
        scores += [await self._score([*ids, ids[0]], len(ids), 0, hidden_only=True) for ids in prompts]
        return [one.hidden for one in scores if one.hidden is not None]

    def _chat_prompt(self, exchange: CaseTexts) -> list[int]:
        text = exchange.user_text if exchange.has_user else exchange.results_line(STATE_CHARS)
        return self._renderer.render(
            [
                {"role": "user", "content": shorten(exchange.request, CONTEXT_CHARS) or "Hello"},
                {"role": "assistant", "content": exchange.reply_line(CONTEXT_CHARS)},
                {"role": "user", "content": shorten(text, STATE_CHARS) or "(nothing)"},
            ]
        )

    async def _score_label(self, kind: str, number: int, exchange: CaseTexts) -> Scores:
        shots = few_shot_set(kind, number)
        ids = [*self._encode(shots.prefix), *self._encode(shots.case_text(exchange))]
        return await self._score([*ids, self._encode(" " + shots.words[0])[0]], len(ids), _TOP_K)

    async def _mean_logprob(self, prompt: list[int], ids: list[int]) -> float:
        scores = await self._score([*prompt, *ids], len(prompt), 0)
        return sum(scores.logprobs) / len(ids)

    async def _score(self, ids: list[int], start: int, top_k: int, hidden_only: bool = False) -> Scores:
        key = (tuple(ids), start, top_k)
        if (known := self._known.get(key)) is not None:
            return known
        layer = self._layer if self._engine.capabilities.hidden_states else None
        request = ScoreRequest(ids, start, top_k, hidden_layer=layer, hidden_only=hidden_only)
        scores = await self._engine.score(request)
        self._known[key] = scores
        while len(self._known) > _NUM_KNOWN:
            del self._known[next(iter(self._known))]
        return scores
