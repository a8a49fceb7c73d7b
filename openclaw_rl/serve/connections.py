"""HTTP connections with time limits for reading requests and writing replies, and a limit on their number.

uvicorn closes idle connections only. Here a request must arrive completely within a time limit, and clients
that stop reading are disconnected. Above the maximum number of connections, the longest-idle one is closed.
Log messages that any client can trigger are limited to one a minute.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from openclaw_rl.config import ServeConfig
from openclaw_rl.errors import where

#: Longer than clients keep idle connections: closing one while the client sends would lose a request.
KEEP_ALIVE_S = 300
#: Open files that are not connections: databases, weights, sockets, pipes.
_OTHER_FILES = 200
_LOG_EVERY_S = 60.0
_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the server waits for a client."""

    request_s: float = 120.0
    """From a request's first byte, or from the connection, until the request is complete."""
    write_s: float = 60.0
    """How long a client may read nothing of a reply."""


class Connection(H11Protocol):
    patience: ClassVar[Patience]
    max_connections: ClassVar[int]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        if len(self.connections) > self.max_connections and not self._make_room():
            transport.abort()
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._reading is None:
            self._expect_request()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body:
            self._stop_reading()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.patience.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # close() would wait for the reader forever
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    @property
    def _is_idle(self) -> bool:
        """Whether no completely read request is being answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _expect_request(self) -> None:
        self._reading = self.loop.call_later(self.patience.request_s, self._too_late)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _too_late(self) -> None:
        self._reading = None
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(_LATE)
        self.transport.close()
        self.loop.call_later(1.0, self.transport.abort)

    def _make_room(self) -> bool:
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        idle = min((o for o in others if o._is_idle), key=lambda other: other._since, default=None)
        if idle is not None:
            self.connections.discard(idle)
            idle.transport.abort()
        return idle is not None


def server_settings(
    app: ASGIApp, settings: ServeConfig, patience: Patience | None = None, **options: Any
) -> uvicorn.Config:
    """uvicorn's settings for a server exposed to untrusted clients."""
    most = max(8, min(settings.max_connections, raise_file_limit() - _OTHER_FILES))
    limits = {"patience": patience or Patience(), "max_connections": most}
    protocol = type("LimitedConnection", (Connection,), limits)
    options = {"access_log": False, "timeout_keep_alive": KEEP_ALIVE_S, "ws": "none", **options}
    config = uvicorn.Config(app, http=protocol, **options)
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_once_a_minute)
    return config


def raise_file_limit() -> int:
    """Raise the limit on open files as far as allowed; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return 65_536 if soft == resource.RLIM_INFINITY else soft


class _OnceAMinute(logging.Filter):
    """Limits messages that any client can trigger to one line a minute."""

    about = ("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket", "socket.accept()")

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, words = time.monotonic(), str(record.msg).partition("\n")[0][:80]
        if record.exc_info and record.exc_info[1] and words.startswith("Exception in ASGI application"):
            # An exception's message may contain a user's text.
            record.msg, record.args, record.exc_info = f"{words}: {where(record.exc_info[1])}", (), None
        if not words.startswith(self.about):
            return True
        record.exc_info = None
        if now - self._said.get(words, -_LOG_EVERY_S) < _LOG_EVERY_S:
            return False
        self._said[words] = now
        return True


_once_a_minute = _OnceAMinute()
