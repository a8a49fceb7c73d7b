"""One reply of the local engine: its tokens parsed into text, reasoning and tool calls.

Generation starts before the first byte is sent, so that an engine failure becomes a status code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, cast

from openclaw_rl.scopes import is_environment
from openclaw_rl.serve.exchange import Event
from openclaw_rl.serve.stopping import StopText
from openclaw_rl.types import (
    ChatRequest,
    Delta,
    FinishReason,
    GenerateRequest,
    Priority,
    Renderer,
    ReplyParser,
    SamplingParams,
    Token,
)


class Generator(Protocol):
    """What a reply needs from its answerer."""

    model_name: str
    fingerprint: str
    renderer: Renderer

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]: ...


class ModelReply:
    """The Source protocol: all choices of one request, generated side by side."""

    def __init__(
        self,
        answerer: Generator,
        request: ChatRequest,
        prompt_ids: list[int],
        sampling: SamplingParams,
        version: int,
        grammar: str | None,
        relaxed: tuple[str, ...],
    ) -> None:
        self.relaxed, self.fingerprint = relaxed, answerer.fingerprint
        self.model, self.version, self.prompt_ids = answerer.model_name, version, prompt_ids
        self.renderer: Renderer | None = answerer.renderer
        self.num_public = 0
        self._answerer, self._request, self._sampling, self._grammar = answerer, request, sampling, grammar
        self._begun: AsyncGenerator[Event] | None = None
        self._first: Event | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for the first event, so that an engine failure becomes a status code, not a broken stream."""
        begun = self._run(0) if self._request.num_choices == 1 else self._merged()
        self._begun = cast("AsyncGenerator[Event]", begun)
        self._first = await anext(self._begun)

    def usage(self) -> tuple[int, int] | None:
        return None

    def abandon(self) -> None:
        """Close events that were never read; events that are being read are closed by their reader."""
        if self._begun is not None and self._first is not None:
            self._first, self._closing = None, asyncio.create_task(self._begun.aclose())

    def sampling(self, index: int) -> SamplingParams:
        """Each choice gets its own seed, so that choices differ and each is reproducible."""
        seed = self._sampling.seed
        return self._sampling if seed is None else replace(self._sampling, seed=seed + index)

    async def events(self) -> AsyncIterator[Event]:
        assert self._begun is not None, "not started"
        assert self._first is not None, "given out already"
        first, self._first = self._first, None
        async with aclosing(self._begun) as events:
            yield first
            async for event in events:
                yield event

    async def _merged(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for event in self._run(index):
                    queue.put_nowait(event)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(pump(index)) for index in range(self._request.num_choices)]
        try:
            for _ in tasks:
                while (event := await queue.get()) is not None:
                    if isinstance(event, BaseException):
                        raise event
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, index: int) -> AsyncIterator[Event]:
        renderer = self._answerer.renderer
        detokenizer, stopping, parser = renderer.detokenizer(), StopText(self._request.stop), self._parser()
        pending: list[Token] = []
        last: Token | None = None
        async with aclosing(self._answerer.generate(self._generate_request(index))) as stream:  # type: ignore[type-var]
            async for last in stream:
                pending.append(last)
                text = stopping.feed(detokenizer.feed(last.id))
                shown: Sequence[Delta | None] = (parser.feed(text) if text else []) or [None]
                for delta in shown:
                    yield Event(index, delta, tuple(pending))
                    pending = []
                if stopping.stopped:
                    break
        rest = "" if stopping.stopped else stopping.feed(detokenizer.finish()) + stopping.finish()
        for delta in (*(parser.feed(rest) if rest else []), *parser.finish()):
            yield Event(index, delta)
        # Some servers count the token that ends a reply out of it: nothing is left of one that ends at once.
        ended = None if stopping.stopped or last is None else last.finish_reason
        reason: FinishReason = ended or "stop"
        yield Event(index, None, (), reason, stopping.stopped_by)

    def _parser(self) -> ReplyParser:
        if self._request.prompt is not None:
            return _PlainText()
        return self._answerer.renderer.parser(self.prompt_ids, self._request.tools)

    def _generate_request(self, index: int) -> GenerateRequest:
        return GenerateRequest(
            self.prompt_ids,
            self.sampling(index),
            stop_ids=self._answerer.renderer.stop_ids,
            policy_version=self.version,
            scope=self._request.scope,
            top_logprobs=max(8, self._request.top_logprobs),
            grammar=self._grammar,
            owner=self._request.user,
            num_public=self.num_public,
            priority=Priority.ENVIRONMENT if is_environment(self._request.scope) else Priority.LIVE,
        )


class _PlainText:
    """The parser for bare prompts: everything is content."""

    def feed(self, text: str) -> list[Delta]:
        return [Delta(content=text)]

    def finish(self) -> list[Delta]:
        return []
