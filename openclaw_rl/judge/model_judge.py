"""Judges on a local engine, for any model.

``ModelJudge`` checks the model first: it uses the label judge if there is a calibration for exactly this
model, otherwise ``AnswerJudge``, and logs which. ``AnswerJudge`` prompts an instruct model like an endpoint,
with a grammar that constrains the answer; how well it judges depends on the model alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from openclaw_rl.config import JudgeConfig
from openclaw_rl.judge.fitted import recognise
from openclaw_rl.judge.label import LabelJudge
from openclaw_rl.judge.llm import AskingJudge, NoAnswer
from openclaw_rl.types import (
    BASE_VERSION,
    GRAMMAR_DIALECT,
    Engine,
    GenerateRequest,
    Judge,
    JudgeCase,
    JudgeError,
    Priority,
    Renderer,
    SamplingParams,
    Verdict,
)

log = logging.getLogger(__name__)
_TEXT = {"type": "string"}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "verdict": {
        "type": "object",
        "properties": {"reasoning": _TEXT, "verdict": {"enum": [1, 0, -1]}},
        "required": ["reasoning", "verdict"],
        "additionalProperties": False,
    },
    "hints": {
        "type": "object",
        "properties": {
            "correction": {"type": "boolean"},
            "hints": {"type": "array", "items": _TEXT, "maxItems": 3},
        },
        "required": ["correction", "hints"],
        "additionalProperties": False,
    },
}
_MAX_TOKENS, _REASONING_CHARS = 320, 240


class AnswerJudge(AskingJudge):
    """Votes are sampled answers of the engine's base model."""

    message_chars = 1500
    max_calls = 4

    def __init__(self, engine: Engine, renderer: Renderer, settings: JudgeConfig = JudgeConfig()) -> None:
        super().__init__(settings)
        self._engine, self._renderer = engine, renderer

    async def complete(self, prompt: str, text: str) -> str:
        ids = self._renderer.render([{"role": "user", "content": text}], thinking=False)
        request = GenerateRequest(
            ids,
            SamplingParams(_MAX_TOKENS, temperature=self.temperature),
            stop_ids=self._renderer.stop_ids,
            policy_version=BASE_VERSION,
            priority=Priority.JUDGE,
            top_logprobs=0,
            grammar=self._renderer.json_grammar(_SCHEMAS[prompt], _REASONING_CHARS)
            if self._engine.capabilities.grammar == GRAMMAR_DIALECT
            else None,
        )
        detokenizer, parts = self._renderer.detokenizer(), []
        try:
            async for token in self._engine.generate(request):
                self.usage.completion_tokens += 1
                if token.id not in self._renderer.stop_ids:
                    parts.append(detokenizer.feed(token.id))
        except (RuntimeError, OSError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        self.usage.prompt_tokens += len(ids)
        return "".join(parts) + detokenizer.finish()

    async def close(self) -> None:
        """Does not close the engine, which belongs to the caller."""


Loaded = tuple[Engine, Callable[[str], list[int]], Renderer]


class ModelJudge:
    """Chooses a judge once, before the first case; if that fails, the next case tries again."""

    def __init__(self, load: Callable[[], Loaded], owns: bool, settings: JudgeConfig = JudgeConfig()) -> None:
        """``load`` may be slow and runs in a thread; with ``owns``, ``close`` closes the engine."""
        self._load, self._owns, self._settings = load, owns, settings
        self._choosing = asyncio.Lock()
        self._loaded: Loaded | None = None
        self.chosen: Judge | None = None

    async def evaluate(self, case: JudgeCase) -> Verdict:
        async with self._choosing:
            if self.chosen is None:
                self.chosen = await self._choose()
        return await self.chosen.evaluate(case)

    async def close(self) -> None:
        if self._loaded is not None and self._owns:
            await self._loaded[0].close()

    async def _choose(self) -> Judge:
        try:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(self._load)
            engine, encode, renderer = self._loaded
            fitted = await recognise(engine, encode)
        except (RuntimeError, OSError, ValueError) as error:
            raise JudgeError(f"the judging model is not there: {error}") from error
        if fitted is not None:
            log.info("using the label judge with the calibration for %s", fitted.model)
            return LabelJudge(engine, encode, renderer, self._settings, fitted)
        log.warning(
            "no calibration was fitted to the judging model, and another model's is not used: "
            "asking the model for verdicts instead. "
            "`python -m openclaw_rl.evals.fit_judge --model MODEL` fits one"
        )
        return AnswerJudge(engine, renderer, self._settings)
