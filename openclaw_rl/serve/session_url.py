"""A base URL for each session: ``/sessions/ID/v1/…`` is ``/v1/…`` with the header ``X-Session-Id: ID``.

For trainers and agents that accept a base URL but cannot send a custom header.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_PATH = re.compile(r"/sessions/(?P<id>[^/]{1,200})(?P<rest>/v1/.*)", re.DOTALL)


class SessionUrl:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (found := _PATH.fullmatch(scope["path"])):
            stated = unquote(found["id"]).encode("utf-8", "surrogateescape")
            headers = [pair for pair in scope["headers"] if pair[0] != b"x-session-id"]
            scope = {
                **scope,
                "path": found["rest"],
                "raw_path": found["rest"].encode("utf-8", "surrogateescape"),
                "headers": [*headers, (b"x-session-id", stated)],
            }
        await self._app(scope, receive, send)
