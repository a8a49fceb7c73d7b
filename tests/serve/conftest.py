"""The whole serving side on a scripted engine, spoken to over ASGI in the same event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system

Body = dict[str, Any]


@pytest.fixture
async def make_system(tmp_path: Path) -> AsyncIterator[Callable[..., ServingSystem]]:
    made: list[ServingSystem] = []

    def make(**settings: Any) -> ServingSystem:
        made.append(scripted_system(tmp_path / f"home{len(made)}", **settings))
        return made[-1]

    yield make
    for system in made:
        await system.close()


@pytest.fixture
def system(make_system: Callable[..., ServingSystem]) -> ServingSystem:
    return make_system()


@pytest.fixture
def engine(system: ServingSystem) -> ScriptedEngine:
    assert isinstance(system.engine, ScriptedEngine)
    return system.engine


@pytest.fixture
def connect() -> Callable[..., httpx.AsyncClient]:
    """``connect(system)``: a client with the default user's key. A 500 is an answer, not a raise."""

    def connect_to(system: ServingSystem, key: str | None = None) -> httpx.AsyncClient:
        key = system.keys.key_of("default") if key is None else key
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(system.app(), raise_app_exceptions=False),
            base_url="http://test",
            headers={"authorization": f"Bearer {key}"} if key else {},
        )

    return connect_to


@pytest.fixture
async def client(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(system) as client:
        yield client


@pytest.fixture
def ask() -> Callable[..., Body]:
    """A chat request's body; keywords are added to it."""

    def body(text: str = "Hi", **more: Any) -> Body:
        return {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}

    return body


@pytest.fixture
def chunks() -> Callable[[str], list[Any]]:
    """The events of a streamed reply, parsed; ``[DONE]`` stays a string."""

    def parse(text: str) -> list[Any]:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    return parse


class RawCall:
    """One POST spoken in ASGI itself, so that a test can leave, or stop reading, at any moment."""

    def __init__(self, system: ServingSystem, body: Body, stalled_after: int | None, path: str) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        self._stalled_after = stalled_after
        self.status: int | None = None
        self.body, self.num_sent = b"", 0
        headers = [
            (b"authorization", f"Bearer {system.keys.key_of('default')}".encode()),
            (b"content-type", b"application/json"),
        ]
        scope = {
            "type": "http", "method": "POST", "path": path, "headers": headers,
            "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("test", 80),
        }  # fmt: skip
        self.task = asyncio.create_task(system.app()(scope, self._messages.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        if self.num_sent == self._stalled_after:
            await asyncio.Event().wait()
        self.num_sent += 1
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    def leave(self) -> None:
        # As servers do, however often the application asks.
        for _ in range(8):
            self._messages.put_nowait({"type": "http.disconnect"})

    async def ended(self) -> None:
        await asyncio.wait({self.task})

    @property
    def reply_id(self) -> str:
        return str(json.loads(self.body.split(b"\n\n")[0].removeprefix(b"data: "))["id"])


@pytest.fixture
def raw_call() -> Callable[..., RawCall]:
    def call(
        system: ServingSystem,
        body: Body,
        *,
        stalled: bool = False,
        stalled_after: int | None = None,
        path: str = "/v1/chat/completions",
    ) -> RawCall:
        return RawCall(system, body, 0 if stalled else stalled_after, path)

    return call
