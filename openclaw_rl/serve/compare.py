"""Sends one prompt to several versions at once, side by side. Nothing is recorded or trained on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import BASE_VERSION, Engine, GenerateRequest, Json, Renderer, SamplingParams

_MAX_AT_ONCE = 4


class Comparison(WellFormed):
    """All versions get the same seed, so that replies differ only by version."""

    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    versions: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=4)]
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 200
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 7


class Comparer:
    """``ready`` loads a version, or raises ValueError if its weights are missing."""

    def __init__(self, engine: Engine, renderer: Renderer, ready: Callable[[int], Awaitable[None]]) -> None:
        self._engine, self._renderer, self._ready = engine, renderer, ready
        self._running = 0

    async def open(
        self, comparison: Comparison, user: str
    ) -> tuple[AsyncIterator[bytes], Callable[[], None]]:
        """The events, and a callback that must be called in the end, whether the events were read or not.

        All refusals are raised here, before the first byte is sent.
        """
        versions = list(dict.fromkeys(comparison.versions))
        if self._running + len(versions) > _MAX_AT_ONCE:
            raise RequestError(
                "Other comparisons are running; try again in a moment.", status=429, retry_after_s=2
            )
        # Counted before the first await, so that concurrent requests cannot exceed the limit together.
        self._running += len(versions)
        try:
            prompt_ids, sampling = await self._prepare(versions, comparison)
        except BaseException:
            self._running -= len(versions)
            raise
        return self._stream(versions, prompt_ids, sampling, user), partial(self._done, len(versions))

    def _done(self, number: int) -> None:
        self._running -= number

    async def _prepare(self, versions: list[int], comparison: Comparison) -> tuple[list[int], SamplingParams]:
        asked = [{"role": "user", "content": comparison.prompt}]
        prompt_ids = await asyncio.to_thread(self._renderer.render, asked)
        room = self._engine.context_length - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"The prompt has {len(prompt_ids)} tokens, the context {self._engine.context_length}.",
                code="context_length_exceeded",
                param="prompt",
            )
        for version in versions:
            try:
                await self._ready(version)
            except (ValueError, OSError) as error:
                raise RequestError(str(error), status=404, code="not_found", param="versions") from None
        sampling = SamplingParams(
            min(room, comparison.max_tokens), comparison.temperature, seed=comparison.seed
        )
        return prompt_ids, sampling

    async def _stream(
        self, versions: list[int], prompt_ids: list[int], sampling: SamplingParams, user: str
    ) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Json] = asyncio.Queue()
        asked = GenerateRequest(
            prompt_ids, sampling, stop_ids=self._renderer.stop_ids, top_logprobs=0, owner=user
        )
        requests = [replace(asked, policy_version=version) for version in versions]
        tasks = [asyncio.create_task(self._answer(request, queue)) for request in requests]
        try:
            left = len(tasks)
            while left:
                event = await queue.get()
                left -= bool(event.get("done"))
                yield sse.event(event)
            yield sse.DONE
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: GenerateRequest, queue: asyncio.Queue[Json]) -> None:
        renderer, number, problem = self._renderer, 0, None
        detokenizer, parser = renderer.detokenizer(), renderer.parser(request.prompt_ids)
        version = request.policy_version or BASE_VERSION
        try:
            async with aclosing(self._engine.generate(request)) as stream:  # type: ignore[type-var]
                async for token in stream:
                    number += 1
                    text = "" if token.id in renderer.stop_ids else detokenizer.feed(token.id)
                    _put(queue, version, [d.content for d in parser.feed(text)] if text else [])
            rest = detokenizer.finish()
            _put(queue, version, [d.content for d in (*parser.feed(rest), *parser.finish())])
        except Exception as error:
            problem = str(error) or type(error).__name__
        queue.put_nowait({"version": version, "done": True, "num_tokens": number, "error": problem})


def _put(queue: asyncio.Queue[Json], version: int, texts: list[str]) -> None:
    if text := "".join(texts):
        queue.put_nowait({"version": version, "text": text})
