"""Server-sent events that stop as soon as the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def comment(text: str) -> bytes:
    """A line that clients ignore."""
    return f": {text}\n\n".encode()


class EventStream(Response):
    """Sends each piece as it arrives; a disconnect closes the source at once.

    Starlette's own streaming response notices a disconnect only when it next sends, which is too late
    for a request that waits in the queue.
    """

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncIterator[bytes], headers: Mapping[str, str], on_end: Callable[[], None]
    ) -> None:
        """``on_end`` always runs, also if the source was never started."""
        self._source, self._on_end = source, on_end
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._source) as source:  # type: ignore[type-var]
            async for piece in source:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Unsent(Response):
    """The response to a disconnected client: sending anything might block forever."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_unless_disconnected(request: Request, work: asyncio.Task[Any]) -> Any:
    """The task's result; if the client disconnects first, the task is cancelled."""
    leaving = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        return await work
    finally:
        work.cancel()
        leaving.cancel()
