"""The interface of dialects: wire formats over the same internal request and the same events.

A dialect translates its requests to chat completions, the form in which turns are stored and passed on, and
writes the events of the reply in its own format. It decides nothing about sessions, sampling or recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from openclaw_rl.serve.exchange import Event, Exchange
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.text import well_formed
from openclaw_rl.types import ChatRequest, ConversationStore, Json, TurnRecord


class Open(BaseModel):
    """Keeps unknown fields, so that they can be counted."""

    model_config = ConfigDict(extra="allow")


class WireRequest(Open, WellFormed):
    """A request as the client sends it."""

    stream: bool | None = None


R = TypeVar("R", bound=WireRequest)


@dataclass(frozen=True, slots=True)
class Call:
    """A request's body and context."""

    body: Json
    """As sent."""
    user: str
    headers: Mapping[str, str]
    recall: Callable[[str], Awaitable[TurnRecord | None]]
    """An earlier turn by its id."""
    conversations: ConversationStore


async def call_of(gateway: Gateway, request: Request) -> Call:
    return Call(
        await request.json(),
        request.state.user,
        request.headers,
        gateway.capture.recall,
        gateway.conversations,
    )


class Writer(Protocol):
    """Writes one reply as its events arrive; each method returns the bytes to send now."""

    def begin(self) -> list[bytes]: ...

    def add(self, event: Event) -> list[bytes]: ...

    def finish(self) -> list[bytes]: ...

    def fail(self, message: str) -> list[bytes]:
        """Report a failed reply in the stream, since the status was already sent."""

    def whole(self) -> Json:
        """The whole reply, once every event was added."""


class Dialect(ABC, Generic[R]):
    name: ClassVar[str]
    """Its name in the ledger and in metrics."""
    path: ClassVar[str]
    id_prefix: ClassVar[str]
    request: type[R]
    harmless: ClassVar[frozenset[str]] = frozenset()
    """Known fields of common clients that have no effect here; they are not counted as ignored."""
    fields: ClassVar[Mapping[str, str]] = {}
    """Field of a chat-completions request -> its name in this dialect, for error messages."""

    def ignored(self, parsed: R) -> list[str]:
        return sorted(set(parsed.model_extra or {}) - self.harmless)

    @abstractmethod
    async def read(self, parsed: R, call: Call) -> ChatRequest:
        """Raises RequestError for valid requests that are not supported."""

    @abstractmethod
    def writer(self, exchange: Exchange, parsed: R) -> Writer: ...

    def in_background(self, parsed: R) -> bool:
        """Whether the client does not wait for the reply."""
        return False

    async def recorded(self, gateway: Gateway, turn: TurnRecord, request: ChatRequest) -> None:
        """A turn was just stored, and its last event is not given out yet. Must not raise."""

    def error(self, status: int, message: str, code: str | None = None, param: str | None = None) -> Json:
        first = (param or "").partition("[")[0].partition(".")[0]
        return openai_error(status, message, code, self.fields.get(first, param))

    def add_routes(self, router: APIRouter, gateway: Gateway) -> None:
        """Add the dialect's further routes."""


def openai_error(status: int, message: str, code: str | None = None, param: str | None = None) -> Json:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
    kind = "server_error" if status >= 500 else kind
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def remaining(call: Call, known: Iterable[str]) -> Json:
    """The request's fields that are not translated; they are stored with the turn."""
    rest: Json = well_formed({name: value for name, value in call.body.items() if name not in set(known)})
    return rest


def given(**fields: Any) -> Json:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
