"""One accepted request, from its reply's events to its recorded turn, for any source of replies.

A turn is durable before its last event is sent. A ledger failure may cost the record, never the reply.
A client that disconnects stops the generation; the partial reply is recorded.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import string
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from openclaw_rl.messages import NOTE
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.schema_check import schema_headers
from openclaw_rl.types import (
    Capture,
    ChatRequest,
    Delta,
    FinishReason,
    Json,
    Message,
    Placement,
    Renderer,
    SamplingParams,
    Token,
    TurnRecord,
)

#: Fields that determine the prompt or the sampling; they have their own limits.
_READ = frozenset(
    {
        "model", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "n",
        "stop", "seed", "logprobs", "top_logprobs", "response_format", "tool_choice",
        "chat_template_kwargs", NOTE,
    }
)  # fmt: skip
_MAX_UNREAD_CHARS = 65_536


@dataclass(frozen=True, slots=True)
class Event:
    """What one choice of a reply gained."""

    choice: int
    delta: Delta | None
    tokens: tuple[Token, ...] = ()
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    """The stop string that ended the reply."""
    logprobs: Json | None = None
    """In OpenAI's format, if another server computed them."""


class ReplySource(Protocol):
    """The reply to one request that passed all checks."""

    model: str
    """The model name in the reply."""
    version: int
    fingerprint: str
    """Of the model's weights; empty if they are not on this server."""
    prompt_ids: list[int]
    renderer: Renderer | None
    """For the tokens in the events; None if events have no tokens."""
    relaxed: tuple[str, ...]
    """Keywords of the client's schema that the grammar does not enforce."""

    async def start(self) -> None:
        """Raises RequestError if there will be no reply."""

    def events(self) -> AsyncIterator[Event]:
        """Events of all choices as they happen; the last one of each choice has a finish reason."""

    def sampling(self, index: int) -> SamplingParams: ...

    def usage(self) -> tuple[int, int] | None:
        """Prompt and completion tokens, if another server counts them."""

    def abandon(self) -> None:
        """Release its resources, also if the events were never read."""


class Host(Protocol):
    """What an exchange needs from its gateway."""

    capture: Capture
    metrics: Metrics

    def release(self, request: ChatRequest) -> None: ...

    def used(self, user: str, tokens: int) -> None: ...

    def spawn(self, work: Coroutine[None, None, None]) -> None: ...


@dataclass
class _Choice:
    """What accumulates while one choice is generated."""

    tokens: list[Token] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    first_token_at: float | None = None
    recorded: bool = False


class Exchange:
    """One accepted request: its ids, and its events, which can be read once."""

    def __init__(
        self,
        host: Host,
        request: ChatRequest,
        source: ReplySource,
        placing: Placement,
        arrived: float,
        id_prefix: str = "chatcmpl-",
    ) -> None:
        self.id = f"{id_prefix}{secrets.token_hex(12)}"
        self.request, self.source, self.arrived = request, source, arrived
        self.session_id = placing.session_id
        self._continues, self._kind, self.recorded = placing.continues, placing.kind, placing.recorded
        self._host, self._released = host, False
        self.on_recorded: Callable[[TurnRecord, ChatRequest], Awaitable[None]] | None = None
        """Awaited for every turn before its last event is given out; must not raise."""
        self._choices = [_Choice() for _ in range(request.num_choices)]

    @property
    def headers(self) -> dict[str, str]:
        return {
            "x-policy-version": str(self.source.version),
            # Clients may use any text as session id, but headers allow printable ASCII only.
            "x-session-id": quote(self.session_id, safe=string.printable[:-6], errors="replace"),
            "x-request-id": self.id,
            **({} if self.recorded else {"x-off-the-record": "1"}),
            **({"x-schema-relaxed": ", ".join(self.source.relaxed)} if self.source.relaxed else {}),
        }

    @property
    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens so far."""
        counted = len(self.source.prompt_ids), sum(len(choice.tokens) for choice in self._choices)
        return self.source.usage() or counted

    async def check(self) -> dict[str, str]:
        """Headers that say whether the reply follows the schema, if the grammar did not enforce all of it."""
        if not self.source.relaxed:
            return {}
        replies = [reply_message(choice.deltas, self.id) for choice in self._choices]
        return await asyncio.to_thread(schema_headers, self.request, replies)

    def turn_id(self, index: int) -> str:
        return self.id if len(self._choices) == 1 else f"{self.id}.{index}"

    async def events(self) -> AsyncIterator[Event]:
        """Events of all choices as they happen. Closing early cancels the reply and records what there is."""
        finished = False
        try:
            async with aclosing(self.source.events()) as events:  # type: ignore[type-var]
                async for event in events:
                    self._note(self._choices[event.choice], event)
                    if event.finish_reason:
                        await self._record(event.choice, event.finish_reason)
                    yield event
            finished = True
        finally:
            self.release()
            self._host.spawn(self._after(finished))

    def _note(self, choice: _Choice, event: Event) -> None:
        if choice.first_token_at is None:
            choice.first_token_at = time.time()
        choice.tokens += event.tokens
        if event.delta:
            choice.deltas.append(event.delta)

    def release(self) -> None:
        """Give the request's slots back, once, however the exchange ends."""
        if not self._released:
            self._released = True
            self.source.abandon()
            self._host.release(self.request)

    async def _record(self, index: int, reason: FinishReason) -> None:
        choice, body = self._choices[index], self.request.body
        now = time.time()
        turn = TurnRecord(
            id=self.turn_id(index),
            session_id=self.session_id,
            user=self.request.user,
            dialect=self.request.dialect,
            kind=self._kind,
            messages=list(body.get("messages") or []),
            tools=body.get("tools"),
            params=stored_fields(body),
            reply=reply_message(choice.deltas, self.turn_id(index)),
            prompt_ids=self.source.prompt_ids,
            tokens=choice.tokens,
            sampling=self.source.sampling(index),
            policy_version=self.source.version,
            finish_reason=reason,
            created_at=self.arrived,
            timings={
                "first_token_s": (choice.first_token_at or now) - self.arrived,
                "total_s": now - self.arrived,
            },
            continues=self._continues,
            scope=self.request.scope,
            fingerprint=self.source.fingerprint,
        )
        choice.recorded = True
        await self._host.capture.record(turn, self.request)
        if self.on_recorded is not None:
            await self.on_recorded(turn, self.request)

    async def _after(self, finished: bool) -> None:
        """Update the metrics, and record for every choice whether its reply was delivered."""
        metrics, (prompt, completion) = self._host.metrics, self.usage
        metrics.tokens.labels("prompt").inc(prompt)
        metrics.tokens.labels("completion").inc(completion)
        self._host.used(self.request.user, prompt + completion)
        metrics.duration.observe(time.time() - self.arrived)
        if first := [c.first_token_at for c in self._choices if c.first_token_at is not None]:
            metrics.first_token.observe(min(first) - self.arrived)
        for index, choice in enumerate(self._choices):
            if choice.first_token_at is not None and not choice.recorded:
                await self._record(index, "cancelled")
        recorded = [self.turn_id(index) for index, choice in enumerate(self._choices) if choice.recorded]
        # At once: the same request may come again before the first is stored, and is no retry of the others.
        await asyncio.gather(*(self._host.capture.delivered(turn_id, finished) for turn_id in recorded))


def stored_fields(body: Json) -> Json:
    """The request's fields besides messages and tools; the size of fields that we do not read is limited."""
    fields = {name: value for name, value in body.items() if name not in ("messages", "tools")}
    room = _MAX_UNREAD_CHARS
    for name in [name for name in fields if name not in _READ]:
        size = len(name) + len(json.dumps(fields[name], default=str))
        if size > room:
            del fields[name]
        else:
            room -= size
    return fields


def reply_message(deltas: Sequence[Delta], turn_id: str) -> Message:
    """The assistant message that the deltas add up to, in the internal format."""
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
    """Unique, and derived from the turn: a call has the same id in the stream and in the ledger."""
    return f"call_{bare_id(turn_id).replace('.', 'c')}t{index}"


def bare_id(turn_id: str) -> str:
    """The id without its dialect's prefix."""
    return turn_id.replace("_", "-").rpartition("-")[2]
