"""Two models answer: an upstream one that cannot be trained, and the local one that learns from it.

Whole conversations go to one or the other, by a share from the ledger. The local model answers with trained
versions only, except for requests that must not leave this machine. If the upstream server is unavailable,
the local model answers: instead of it before the first token, later by continuing the interrupted reply.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from openclaw_rl.errors import RequestError
from openclaw_rl.scopes import is_environment
from openclaw_rl.serve.choice import fraction
from openclaw_rl.serve.exchange import Event
from openclaw_rl.serve.model_answerer import ModelAnswerer
from openclaw_rl.serve.model_reply import ModelReply
from openclaw_rl.serve.upstream import UpstreamAnswerer, UpstreamReply
from openclaw_rl.types import (
    BASE_VERSION,
    UPSTREAM_VERSION,
    ChatRequest,
    Renderer,
    SamplingParams,
    Scope,
)

log = logging.getLogger(__name__)
#: Seconds without requests to the upstream server after a failure, or as long as it asked, up to the maximum.
_REST_S, _MOST_REST_S = 10.0, 300.0
#: Payment required, request timeout, too many requests.
_OUTAGES = (402, 408, 429)
#: Refusals of the local model for requests that the upstream model may be able to answer.
_TOO_MUCH = ("context_length_exceeded", "unsupported_content", "invalid_schema")


class TakeOverAnswerer:
    """The Answerer protocol over both models."""

    def __init__(
        self,
        local: ModelAnswerer,
        upstream: UpstreamAnswerer,
        model: str | None,
        first_token_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``model`` is the upstream model's name; None: the first one that the upstream server lists."""
        self.local, self.upstream, self._model = local, upstream, model
        self.shares: Mapping[Scope, float] = {}
        """Scope -> share of its conversations that are answered locally; set from the ledger."""
        self.model_name, self.fingerprint = local.model_name, local.fingerprint
        self.renderer: Renderer | None = local.renderer
        self.first_token_s, self._clock = first_token_s, clock
        self._rests_until = 0.0
        self.problem: str | None = None
        """Why the upstream server did not answer last time; None if it did."""
        self.stays_here: Callable[[ChatRequest], bool] = lambda request: False
        """Whether a request must not leave this machine, because it is off the record; set by the wiring."""

    async def prepare(self, request: ChatRequest) -> ModelReply | EitherReply:
        if self._is_local_only(request):
            return await self.local.prepare(request)
        if fraction(request, "take over") < self.shares.get(request.scope, 0.0):
            try:
                reply = await self.prepare_here(request)
                if reply.version != BASE_VERSION:
                    return reply
            except RequestError as error:
                if error.code not in _TOO_MUCH:
                    raise
        if self._clock() < self._rests_until:
            return await self.prepare_here(request)
        return EitherReply(self, await self.upstream.prepare(await self._elsewhere(request)), request)

    def _is_local_only(self, request: ChatRequest) -> bool:
        """Requests with token ids or a version, episodes (which need exact tokens), and private requests."""
        named = "@" in request.model and self.is_ours(request.model)
        return (
            named
            or isinstance(request.prompt, list)
            or is_environment(request.scope)
            or self.stays_here(request)
        )

    def is_ours(self, model: str) -> bool:
        return model.partition("@")[0].lower() in (self.model_name.lower(), "default")

    async def prepare_here(self, request: ChatRequest) -> ModelReply:
        known = request if self.is_ours(request.model) else replace(request, model=self.model_name)
        return await self.local.prepare(known)

    async def _elsewhere(self, request: ChatRequest) -> ChatRequest:
        """The request with the upstream model's name."""
        if not self.is_ours(request.model):
            return request
        if self._model is None:
            try:
                self._model = (await self.upstream.models())[0]
            except (RequestError, IndexError):  # sent anyway: the failure is handled there
                return request
        return replace(request, model=self._model, body={**request.body, "model": self._model})

    def rest(self, problem: Exception) -> None:
        """Pause the upstream after a failure. Its message may contain a user's text and is not kept."""
        told = str(problem.status) if isinstance(problem, RequestError) else "no first word in time"
        if self.problem is None:
            log.warning("upstream failed (%s); answering with the local model", told)
        self.problem = told
        asked = problem.retry_after_s if isinstance(problem, RequestError) else None
        self._rests_until = self._clock() + min(_MOST_REST_S, asked or _REST_S)

    async def models(self, scope: Scope) -> list[str]:
        return await self.local.models(scope)

    async def check_model(self, name: str, scope: Scope) -> None:
        if self.is_ours(name):
            await self.local.check_model(name, scope)
        else:
            await self.upstream.check_model(name, scope)

    async def count_tokens(self, request: ChatRequest) -> int:
        known = request if self.is_ours(request.model) else replace(request, model=self.model_name)
        return await self.local.count_tokens(known)

    async def close(self) -> None:
        await self.upstream.close()
        await self.local.close()


class EitherReply:
    """The Source protocol: the upstream reply, or a local one instead."""

    def __init__(self, answerer: TakeOverAnswerer, upstream: UpstreamReply, request: ChatRequest) -> None:
        self.model, self.version, self.fingerprint = upstream.model, UPSTREAM_VERSION, ""
        self.prompt_ids: list[int] = []
        self.renderer: Renderer | None = None
        self.relaxed: tuple[str, ...] = ()
        self._answerer, self._upstream, self._request = answerer, upstream, request
        self._local: ModelReply | None = None
        self._events = upstream.events()
        self._first: Event | None = None

    async def start(self) -> None:
        """Wait for the first event, so that the answering model is known before anything is sent."""
        try:
            await self._upstream.start()
            self._first = await asyncio.wait_for(anext(self._events), self._answerer.first_token_s)
            self._answerer.problem = None
        except (RequestError, TimeoutError, StopAsyncIteration) as problem:
            if isinstance(problem, RequestError) and not self._is_outage(problem):
                raise
            await self._answer_here(problem)

    def _is_outage(self, error: RequestError) -> bool:
        """Whether the upstream server or its account failed, as opposed to a mistake of the client.

        A missing model is the client's mistake only if the client named it.
        """
        retired = error.status == 404 and self._answerer.is_ours(self._request.model)
        return error.code == "upstream" or error.status in _OUTAGES or error.status >= 500 or retired

    async def _answer_here(self, problem: Exception) -> None:
        self._upstream.abandon()
        self._answerer.rest(problem)
        try:
            local = await self._answerer.prepare_here(self._request)
            await local.start()
        except RequestError:
            raise problem from None  # the local model cannot answer either
        self._local = local
        self.model, self.version, self.fingerprint = local.model, local.version, local.fingerprint
        self.prompt_ids, self.renderer, self.relaxed = local.prompt_ids, local.renderer, local.relaxed

    async def events(self) -> AsyncIterator[Event]:
        if self._local is not None:
            async with aclosing(self._local.events()) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
            return
        assert self._first is not None, "not started"
        said, only_text = "", True
        event = self._first
        while True:
            if event.delta is not None:
                said += event.delta.content
                only_text = only_text and event.delta.tool_index is None and not event.delta.reasoning
            yield event
            try:
                event = await anext(self._events)
            except StopAsyncIteration:
                return
            except RequestError as problem:
                if not self._is_outage(problem) or not only_text or self._request.num_choices > 1:
                    raise
                self._answerer.rest(problem)
                break
        async for event in self._go_on(said):
            yield event

    async def _go_on(self, said: str) -> AsyncIterator[Event]:
        """Continue the reply locally. Events carry no tokens, since the whole reply is no single model's."""
        local = await self._answerer.prepare_here(self._request)
        local.prompt_ids = [*local.prompt_ids, *self._answerer.local.renderer.encode(said)]
        await local.start()
        async with aclosing(local.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if event.delta is not None or event.finish_reason:
                    yield replace(event, tokens=())

    def sampling(self, index: int) -> SamplingParams:
        return (self._local or self._upstream).sampling(index)

    def usage(self) -> tuple[int, int] | None:
        return (self._local or self._upstream).usage()

    def abandon(self) -> None:
        self._upstream.abandon()
        if self._local is not None:
            self._local.abandon()
