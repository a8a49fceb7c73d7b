"""From one internal request to a stream of events, whatever the dialect.

Renders, generates, parses and records. A turn is durable before its last event is given out.
Nothing here waits for learning, and a ledger that is down costs the record, never the reply.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import string
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.stopping import StopText
from openclaw_rl.types import (
    Capture,
    ChatRequest,
    Delta,
    Engine,
    FinishReason,
    Generate,
    GenerateRequest,
    Json,
    Message,
    Placement,
    Renderer,
    SamplingParams,
    Token,
    TurnRecord,
)

log = logging.getLogger(__name__)
_MAX_GIVING_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something one choice of a reply gained."""

    choice: int
    delta: Delta | None
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    max_inflight: int
    default_max_tokens: int


@dataclass
class _Choice:
    """What accumulates while one choice is generated."""

    tokens: list[Token] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    first_token_at: float | None = None
    recorded: bool = False


class Gateway:
    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        capture: Capture,
        model_name: str,
        limits: Limits,
        metrics: Metrics,
        generate: Generate | None = None,
    ) -> None:
        self.engine, self.renderer, self.capture = engine, renderer, capture
        self.model_name, self.limits, self.metrics = model_name, limits, metrics
        self._generate = generate
        self._inflight = 0
        self._background: set[asyncio.Task[None]] = set()

    @property
    def num_inflight(self) -> int:
        return self._inflight

    async def open(self, request: ChatRequest) -> Exchange:
        """Check everything that can be refused before the first byte is sent."""
        arrived = time.time()
        stated = self.version_of(request.model)
        grammar = await self._grammar(request)
        try:
            prompt_ids = self.renderer.render(request.messages, request.tools, thinking=request.thinking)
        except ValueError as error:
            raise RequestError(str(error), param="messages") from error
        except RecursionError as error:
            raise RequestError("The request is nested too deeply; flatten it.", param="tools") from error
        room = self.engine.context_length - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"This model's maximum context length is {self.engine.context_length} tokens. However, your "
                f"messages resulted in {len(prompt_ids)} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
                param="messages",
            )
        if self._inflight + request.num_choices > self.limits.max_inflight:
            raise RequestError(
                f"{self._inflight} requests are being answered or waiting, the limit; retry in a second.",
                status=429,
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        sampling = SamplingParams(
            max_tokens=min(room, request.max_tokens or self.limits.default_max_tokens),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
        )
        version = self.engine.pick_version(prompt_ids) if stated is None else stated
        # Claimed before the first await, so that a burst cannot pass the limit together.
        self._inflight += request.num_choices
        try:
            placing = await self.capture.place(request)
            return Exchange(self, request, prompt_ids, sampling, version, grammar, placing, arrived)
        except BaseException:
            self._inflight -= request.num_choices
            raise

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        return self._generate(self.engine, request) if self._generate else self.engine.generate(request)

    async def _grammar(self, request: ChatRequest) -> str | None:
        """The shape the reply must have, checked; building it may take a moment."""
        # An open text may take about half of the reply, so that there is room to finish it.
        max_chars = max(64, (request.max_tokens or self.limits.default_max_tokens) // 2)
        if request.must_call:
            grammar, param = self.renderer.tool_grammar(request.must_call, max_chars), "tools"
        elif request.json_schema is not None:
            grammar, param = self.renderer.json_grammar(request.json_schema, max_chars), "response_format"
        else:
            return None
        if not self.engine.capabilities.grammars:
            raise RequestError("This engine cannot constrain replies; leave it free.", param=param)
        try:
            await asyncio.to_thread(self.engine.check_grammar, grammar)
        except ValueError as error:
            raise RequestError(
                f"This schema cannot be used: {error}", code="invalid_schema", param=param
            ) from None
        return grammar

    def release(self, num_choices: int) -> None:
        self._inflight -= num_choices

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run to the end whatever becomes of the request; ``drain`` waits for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def drain(self) -> None:
        """Wait for replies that are being given up and for records that are still being written."""
        deadline = time.monotonic() + _MAX_GIVING_UP_S
        while self._background or (self._inflight and time.monotonic() < deadline):
            await asyncio.gather(*self._background, asyncio.sleep(0.01), return_exceptions=True)

    def version_of(self, model: str) -> int | None:
        """``name`` leaves it to the engine (None), ``name@3`` is a certain version, ``name@0`` the base."""
        name, _, stated = model.partition("@")
        status = self.engine.status()
        if name.lower() not in (self.model_name.lower(), "default"):
            raise RequestError(
                f"The model '{model}' does not exist here. This server has '{self.model_name}'.",
                status=404,
                code="model_not_found",
                param="model",
            )
        if not stated:
            return None
        loaded = {str(version): version for version in status.versions}
        if stated not in loaded:
            known = ", ".join(f"{self.model_name}@{version}" for version in loaded)
            raise RequestError(
                f"The model '{model}' names no loaded policy version; loaded: {known}.",
                status=404,
                code="model_not_found",
                param="model",
            )
        return loaded[stated]


class Exchange:
    """One accepted request: its identity, and its events exactly once."""

    def __init__(
        self,
        gateway: Gateway,
        request: ChatRequest,
        prompt_ids: list[int],
        sampling: SamplingParams,
        version: int,
        grammar: str | None,
        placing: Placement,
        arrived: float,
    ) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.request, self.prompt_ids, self.sampling = request, prompt_ids, sampling
        self.version, self.session_id, self.arrived = version, placing.session_id, arrived
        self._continues, self._kind = placing.continues, placing.kind
        self._grammar = grammar
        self._gateway, self._released = gateway, False
        self._choices = [_Choice() for _ in range(request.num_choices)]

    @property
    def headers(self) -> dict[str, str]:
        return {
            "x-policy-version": str(self.version),
            # Clients may state any text as session id; a header holds printable ASCII only.
            "x-session-id": quote(self.session_id, safe=string.printable[:-6], errors="replace"),
            "x-request-id": self.id,
        }

    @property
    def num_completion_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self._choices)

    def turn_id(self, index: int) -> str:
        return self.id if len(self._choices) == 1 else f"{self.id}.{index}"

    async def events(self) -> AsyncIterator[Event]:
        """All choices' events as they happen. Closing early cancels and records what there was."""
        finished = False
        try:
            if len(self._choices) == 1:
                async with aclosing(self._run(0)) as run:  # type: ignore[type-var]
                    async for event in run:
                        yield event
            else:
                async with aclosing(self._merged()) as merged:  # type: ignore[type-var]
                    async for event in merged:
                        yield event
            finished = True
        finally:
            self.release()
            self._gateway.spawn(self._after(finished))

    def release(self) -> None:
        """Give the places in the queue back, once, however the exchange ends."""
        if not self._released:
            self._released = True
            self._gateway.release(len(self._choices))

    async def _merged(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for event in self._run(index):
                    queue.put_nowait(event)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(pump(index)) for index in range(len(self._choices))]
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
        choice, renderer = self._choices[index], self._gateway.renderer
        detokenizer, stopping = renderer.detokenizer(), StopText(self.request.stop)
        parser = renderer.parser(self.prompt_ids, self.request.tools)
        pending: list[Token] = []
        async with aclosing(self._gateway.generate(self._generate_request(index))) as stream:  # type: ignore[type-var]
            async for token in stream:
                if choice.first_token_at is None:
                    choice.first_token_at = time.time()
                choice.tokens.append(token)
                pending.append(token)
                text = stopping.feed(detokenizer.feed(token.id))
                deltas = parser.feed(text) if text else []
                choice.deltas += deltas
                shown: Sequence[Delta | None] = deltas or [None]
                for delta in shown:
                    yield Event(index, delta, tuple(pending))
                    pending = []
                if stopping.stopped:
                    break
        rest = "" if stopping.stopped else stopping.feed(detokenizer.finish()) + stopping.finish()
        deltas = [*(parser.feed(rest) if rest else []), *parser.finish()]
        choice.deltas += deltas
        for delta in deltas:
            yield Event(index, delta, ())
        reason: FinishReason = "stop" if stopping.stopped else choice.tokens[-1].finish_reason or "stop"
        await self._record(index, reason)
        yield Event(index, None, (), reason)

    def _generate_request(self, index: int) -> GenerateRequest:
        return GenerateRequest(
            self.prompt_ids,
            self._sampling(index),
            stop_ids=self._gateway.renderer.stop_ids,
            policy_version=self.version,
            top_logprobs=max(8, self.request.top_logprobs),
            grammar=self._grammar,
        )

    def _sampling(self, index: int) -> SamplingParams:
        """Choices of one request differ, yet each is reproducible."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + index)

    async def _record(self, index: int, reason: FinishReason) -> None:
        choice, body = self._choices[index], self.request.body
        now = time.time()
        reply = reply_message(choice.deltas, self.turn_id(index))
        turn = TurnRecord(
            id=self.turn_id(index),
            session_id=self.session_id,
            user=self.request.user,
            dialect=self.request.dialect,
            kind=self._kind,
            messages=list(body.get("messages") or []),
            tools=body.get("tools"),
            params={name: value for name, value in body.items() if name not in ("messages", "tools")},
            reply=reply,
            prompt_ids=self.prompt_ids,
            tokens=choice.tokens,
            sampling=self._sampling(index),
            policy_version=self.version,
            finish_reason=reason,
            created_at=self.arrived,
            timings={
                "first_token_s": (choice.first_token_at or now) - self.arrived,
                "total_s": now - self.arrived,
            },
            continues=self._continues,
        )
        choice.recorded = True
        await self._gateway.capture.record(turn, self.request)

    async def _after(self, finished: bool) -> None:
        """Count, and note for every choice whether its reply reached the client's connection."""
        metrics = self._gateway.metrics
        metrics.tokens.labels("prompt").inc(len(self.prompt_ids))
        metrics.tokens.labels("completion").inc(self.num_completion_tokens)
        metrics.duration.observe(time.time() - self.arrived)
        if first := [c.first_token_at for c in self._choices if c.first_token_at is not None]:
            metrics.first_token.observe(min(first) - self.arrived)
        for index, choice in enumerate(self._choices):
            if choice.tokens and not choice.recorded:
                await self._record(index, "cancelled")
            if choice.recorded:
                await self._gateway.capture.delivered(self.turn_id(index), finished)


def reply_message(deltas: Sequence[Delta], turn_id: str) -> Message:
    """The assistant message that the deltas add up to, in the internal form."""
    calls: dict[int, Json] = {}
    for delta in deltas:
        if delta.tool_index is not None:
            call = calls.setdefault(
                delta.tool_index,
                {"id": tool_call_id(turn_id, delta.tool_index), "name": "", "arguments": ""},
            )
            call["name"] += delta.tool_name
            call["arguments"] += delta.arguments
    message: Message = {"role": "assistant", "content": "".join(delta.content for delta in deltas)}
    if reasoning := "".join(delta.reasoning for delta in deltas):
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def tool_call_id(turn_id: str, index: int) -> str:
    """Unique, and derived: the same call has the same id in the stream and in the ledger."""
    return f"call_{turn_id.removeprefix('chatcmpl-').replace('.', 'c')}t{index}"
