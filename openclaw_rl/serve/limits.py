"""Limits the size of request bodies by route, before they are read into memory.

A refused body is not stored: the server discards the rest as it arrives.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.dialects import DIALECTS
from openclaw_rl.serve.refuse import refusal

#: For every route except the dialects'.
SMALL_BYTES = 256 * 1024
#: Values in a body: parsing very many of them blocks the event loop for longer than a long text does.
MAX_VALUES = 500_000


class BodyLimit:
    """Counts a body while it arrives, regardless of its headers."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isascii() and stated.isdigit() and (len(stated) > 18 or int(stated) > limit):
            await refusal(scope["path"], RequestError(too_large(limit), status=413))(scope, receive, send)
            return
        await self._app(scope, _Counted(receive, limit), send)

    def _limit(self, path: str) -> int:
        return self._max_bytes if path.startswith(tuple(d.path for d in DIALECTS)) else SMALL_BYTES


class _Counted:
    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._num_bytes = self._num_values = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        body = message.get("body", b"")
        self._num_bytes += len(body)
        self._num_values += body.count(b",")
        if self._num_bytes > self._limit:
            raise HTTPException(413, too_large(self._limit))
        if self._num_values > MAX_VALUES:
            raise HTTPException(413, f"A request may hold {MAX_VALUES:,} values; send fewer.")
        return message


def too_large(limit: int) -> str:
    size = f"{limit >> 20} MB" if limit >= 1 << 20 else f"{limit >> 10} kB"
    return f"A request here may have {size}; send less. (--max-request-mb is the limit for conversations.)"
