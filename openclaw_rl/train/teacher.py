"""The teacher: a version on the serving engine, queried at low priority."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TypeVar

import numpy as np

from openclaw_rl.relevance import stutters
from openclaw_rl.types import (
    BASE_VERSION,
    Answer,
    Engine,
    GenerateRequest,
    IntArray,
    Message,
    Priority,
    Renderer,
    SamplingParams,
    Scope,
    ScoreRequest,
    Teaching,
    Token,
    Weights,
)

#: The teacher's own likeliest tokens per position to request; an algorithm's ``teacher_k`` is at most this.
_TEACHER_TOP = 8
#: Likeliest tokens recorded per position of an answer; one bin stands for the rest.
_ANSWER_TOP = 20
_MAX_TOKENS = 80
#: Length limit of an anchor's answer; most end earlier.
_ANCHOR_TOKENS = 16
#: High enough that answers differ, low enough that they stay on topic.
_TEMPERATURE, _TOP_P = 0.8, 0.95
#: Concurrent requests: a batched engine step costs about the same for all of them.
_AT_ONCE = 16
_LEAST_WORDS, _LEAST_DIFFERENT = 3, 0.4
_WORD = re.compile(r"[^\W_]+")


T = TypeVar("T")


class EngineTeacher:
    """``choose`` returns a scope's current teacher; None is the base."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        choose: Callable[[Scope], Weights | None],
        degeneration: Callable[[str], str | None],
    ) -> None:
        self._engine, self._renderer, self._choose = engine, renderer, choose
        self._degeneration = degeneration
        self._weights: Weights | None = None
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def prepare(self, scope: Scope) -> None:
        """Load a scope's teacher, unless it is loaded."""
        self._weights = self._choose(scope)
        await self._load()

    async def prepare_base(self) -> None:
        self._weights = None

    @property
    def _version(self) -> int:
        return BASE_VERSION if self._weights is None else self._weights.version

    async def _load(self) -> None:
        if self._weights is None:
            return
        try:
            await self._engine.load(self._weights)
        except ValueError as error:  # RuntimeError, since callers take ValueError for a problem of the turn
            raise RuntimeError(f"the teacher, version {self._version}, cannot be loaded: {error}") from error

    async def _with_reload(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Other parts load and unload versions too: if the teacher was evicted, load it again."""
        try:
            return await ask()
        except ValueError:
            if self._weights is None:
                raise
            await self._load()
            return await ask()

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        request = ScoreRequest(
            [*prompt_ids, *reply_ids],
            len(prompt_ids),
            top_k=max(ids_NK.shape[1], _TEACHER_TOP),
            policy_version=self._version,
            candidates=ids_NK.tolist(),
        )
        scores = await self._with_reload(lambda: self._engine.score(request))
        return Teaching(
            np.array(scores.candidate_logprobs, np.float32),
            np.array(scores.top_ids, np.int32),
            np.array(scores.top_logprobs, np.float32),
        )

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int]) -> float:
        request = ScoreRequest([*prompt_ids, *reply_ids], len(prompt_ids), policy_version=self._version)
        async with self._places:
            scores = await self._with_reload(lambda: self._engine.score(request))
        return float(np.mean(scores.logprobs))

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        sampling = [SamplingParams(_MAX_TOKENS, _TEMPERATURE, _TOP_P, seed=seed + n) for n in range(number)]
        return list(await asyncio.gather(*(self._answer(prompt_ids, each) for each in sampling)))

    def encode(self, text: str, *, ends: bool = True) -> list[int]:
        return [*self._renderer.encode(text), *([self._end_id] if ends else [])]

    @cached_property
    def _end_id(self) -> int:
        """The token with which the renderer ends a reply in the history."""
        said: list[Message] = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
        prompt = self._renderer.render(said)
        return next(each for each in reversed(prompt) if each in self._renderer.stop_ids)

    async def likeliest(self, prompt_ids: list[int]) -> Answer:
        """The beginning of the greedy answer."""
        return await self._answer(prompt_ids, SamplingParams(_ANCHOR_TOKENS, temperature=0.0))

    async def _answer(self, prompt_ids: list[int], sampling: SamplingParams) -> Answer:
        request = GenerateRequest(
            prompt_ids,
            sampling,
            stop_ids=self._renderer.stop_ids,
            policy_version=self._version,
            priority=Priority.JUDGE,
            top_logprobs=_ANSWER_TOP,
        )
        async with self._places:
            tokens = await self._with_reload(lambda: self._generated(request))
        return self._read(tokens)

    async def _generated(self, request: GenerateRequest) -> list[Token]:
        return [token async for token in self._engine.generate(request)]

    def _read(self, tokens: list[Token]) -> Answer:
        detokenizer, stops = self._renderer.detokenizer(), self._renderer.stop_ids
        said = "".join(detokenizer.feed(t.id) for t in tokens if t.id not in stops) + detokenizer.finish()
        return Answer(
            [token.id for token in tokens],
            [token.logprob for token in tokens],
            np.array([token.top_ids for token in tokens], np.int32),
            np.array([token.top_logprobs for token in tokens], np.float32),
            said,
            finished=bool(tokens) and tokens[-1].id in stops,
        )

    def degenerate(self, text: str) -> bool:
        words = [word.lower() for word in _WORD.findall(text)]
        few = len(words) < _LEAST_WORDS or len(set(words)) < _LEAST_DIFFERENT * min(len(words), 60)
        return few or stutters(text) or self._degeneration(text) is not None
