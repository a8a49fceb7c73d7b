"""A chat-completions endpoint for third-party programs, whose requests are read and answered by our code.

Listens on the loopback interface; a streamed reply comes as one chunk. Anyone who knows the URL, which
contains a secret, may send requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets

from openclaw_rl.types import Json, Message


class Endpoint:
    """``requests`` holds request bodies as they arrive; each is answered by one ``reply``."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Json] = asyncio.Queue()
        self._replies: asyncio.Queue[Json | None] = asyncio.Queue()
        self._answering: set[asyncio.Task[None]] = set()
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None

    async def open(self) -> Endpoint:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return self

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{self._secret}/v1"

    def reply(self, action: Message) -> None:
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in action.get("tool_calls") or []
        ]
        message: Json = {"role": "assistant", "content": action.get("content") or (None if calls else "")}
        self._replies.put_nowait({**message, "tool_calls": calls} if calls else message)

    async def close(self) -> None:
        if (server := self._server) is not None:
            self._server = None
            server.close()
            for _ in self._answering:  # requests still waiting get an empty response
                self._replies.put_nowait(None)
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        assert mine is not None
        self._answering.add(mine)
        mine.add_done_callback(self._answering.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            sizes = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(sizes[0]) if sizes else 0)
            if first.split()[1] != f"/{self._secret}/v1/chat/completions":
                writer.write(_http("404 Not Found", "application/json", b'{"error": {"message": "unknown"}}'))
            else:
                asked = json.loads(body)
                self.requests.put_nowait(asked)
                reply = await self._replies.get()
                writer.write(_completion(asked, reply) if reply is not None else b"")
            await writer.drain()
        writer.close()


def _completion(asked: Json, message: Json) -> bytes:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    facts: Json = {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "created": 0,
        "model": asked.get("model", "default"),
    }
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        whole = {**facts, "object": "chat.completion", "choices": [choice], "usage": usage}
        return _http("200 OK", "application/json", json.dumps(whole).encode())
    calls = [{**call, "index": n} for n, call in enumerate(message.get("tool_calls") or [])]
    delta = {**message, "tool_calls": calls} if calls else message
    part = {**facts, "object": "chat.completion.chunk"}
    events = [
        {**part, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**part, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {**part, "choices": [], "usage": usage},
    ]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return _http("200 OK", "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())


def _http(status: str, kind: str, body: bytes) -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
