"""Turns an internal request into an exchange, for every dialect and every answerer.

Enforces the limits, finds the session, and finishes all work that was started. Nothing here waits for
learning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Protocol

from openclaw_rl.errors import RequestError
from openclaw_rl.roles import system_prompt
from openclaw_rl.serve.background import Background
from openclaw_rl.serve.exchange import Exchange, ReplySource
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.quota import Quotas
from openclaw_rl.serve.remember import remembering
from openclaw_rl.serve.slots import Slots
from openclaw_rl.types import (
    EVERYONE,
    BackgroundStore,
    Capture,
    ChatRequest,
    ConversationStore,
    Renderer,
    Scope,
)

_MAX_GIVING_UP_S = 10.0


class Answerer(Protocol):
    """What replies: this process's engine, or another server."""

    model_name: str
    fingerprint: str
    """Of the model's weights; empty if they are not on this server."""

    @property
    def renderer(self) -> Renderer | None:
        """None if prompts are not rendered on this server."""

    async def prepare(self, request: ChatRequest) -> ReplySource:
        """Raise every possible refusal. Slow work does not run on the event loop."""

    async def models(self, scope: Scope) -> list[str]: ...

    async def check_model(self, name: str, scope: Scope) -> None:
        """Raises RequestError if the model does not exist or belongs to another scope."""

    async def count_tokens(self, request: ChatRequest) -> int: ...

    async def close(self) -> None: ...


class Gateway:
    def __init__(
        self,
        answerer: Answerer,
        capture: Capture,
        slots: Slots,
        metrics: Metrics,
        conversations: ConversationStore,
        unfinished: BackgroundStore,
        note: Callable[[str, str], str | None] = lambda user, system: None,
        scope_of: Callable[[str], Scope] = lambda user: EVERYONE,
        quotas: Quotas | None = None,
    ) -> None:
        """``note`` returns a user's note, which is added to the system prompt given; ``scope_of`` returns the
        scope whose policy answers the user."""
        self.answerer, self.capture, self.metrics = answerer, capture, metrics
        self.conversations, self.background = conversations, Background(unfinished)
        self.model_name, self.renderer = answerer.model_name, answerer.renderer
        self._quotas = quotas
        self._slots, self._remembered, self.scope_of = slots, note, scope_of
        self._background: set[asyncio.Task[None]] = set()

    @property
    def num_inflight(self) -> int:
        return self._slots.num_taken

    async def open(self, request: ChatRequest, id_prefix: str = "chatcmpl-", start: bool = True) -> Exchange:
        """Everything that can be refused is refused here, before the first byte is sent.

        Without ``start`` it does not wait for the first token, and the caller starts the source.
        """
        arrived = time.time()
        system = system_prompt(request.messages)
        request = replace(request, scope=self.scope_of(request.user), system=system)
        # Whoever names a version (``name@3``) wants to see what that version does by itself.
        may_note = request.prompt is None and "@" not in request.model
        if may_note and (note := self._remembered(request.user, system)):
            request = remembering(request, note)
        if self._quotas is not None:
            await self._quotas.take(request.user)
        # Checked and counted with no await in between, so that requests cannot exceed the limit together.
        if (problem := self._slots.take(request.user, request.num_choices)) is not None:
            raise RequestError(
                f"{problem}; retry in a second.", status=429, code="rate_limit_exceeded", retry_after_s=1
            )
        source: ReplySource | None = None
        try:
            source = await self.answerer.prepare(request)
            placing = await self.capture.place(request)
            if request.conversation is not None and not placing.recorded:
                raise RequestError(
                    "A conversation keeps what is said in it, so it cannot go on off the record.",
                    param="conversation",
                )
            if start:
                await source.start()
            return Exchange(self, request, source, placing, arrived, id_prefix)
        except BaseException:
            if source is not None:
                source.abandon()
            self.release(request)
            raise

    async def count_tokens(self, request: ChatRequest) -> int:
        return await self.answerer.count_tokens(replace(request, scope=self.scope_of(request.user)))

    def release(self, request: ChatRequest) -> None:
        self._slots.give_back(request.user, request.num_choices)

    def used(self, user: str, tokens: int) -> None:
        if self._quotas is not None:
            self._quotas.add(user, tokens)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run work to completion even if the request is cancelled; ``drain`` waits for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self) -> None:
        """Wait for the records of what has ended by now."""
        await asyncio.gather(*self._background, return_exceptions=True)

    async def drain(self) -> None:
        """Wait for records being written and, up to 10 s, for replies being cancelled."""
        deadline = time.monotonic() + _MAX_GIVING_UP_S
        while self._background or (self.num_inflight and time.monotonic() < deadline):
            await asyncio.gather(*self._background, asyncio.sleep(0.01), return_exceptions=True)
