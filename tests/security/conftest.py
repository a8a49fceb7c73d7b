"""Scripted systems behind real sockets, and the raw bytes an attacker would send."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve.connections import Patience, server_settings
from openclaw_rl.testing import scripted_system, wait_until


@dataclass
class Live:
    """A scripted system that listens, in a thread of its own."""

    system: ServingSystem
    port: int
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return str(self.system.keys.key_of("default"))

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def head(self, path: str, *lines: str, key: str | None = None, method: str = "POST") -> bytes:
        """The first bytes of a request; what is missing is its body."""
        fixed = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        shown = [] if key == "" else [f"Authorization: Bearer {key or self.key}"]
        return "\r\n".join([*fixed, *shown, "Content-Type: application/json", *lines, "", ""]).encode()


def chat(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}


def status_of(connection: socket.socket) -> int:
    """Of the answer that comes; 0 if the connection ends without one."""
    data = b""
    while b"\r\n" not in data and (piece := connection.recv(4096)):
        data += piece
    return int(data.split()[1]) if data.startswith(b"HTTP/") else 0


def event_of(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))


def run_live(system: ServingSystem, patience: Patience) -> tuple[Live, Callable[[], None]]:
    server = uvicorn.Server(
        server_settings(
            system.app(), system.config.serve, patience, host="127.0.0.1", port=0, log_level="error"
        )
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    wait_until(lambda: server.started, "the scripted server listens")

    def stop() -> None:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()

    return Live(system, server.servers[0].sockets[0].getsockname()[1], server, loops[0]), stop


@pytest.fixture
def make_live(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """``make_live(**settings)``: as on the command line."""
    with ExitStack() as stack:

        def make(patience: Patience | None = None, **settings: Any) -> Live:
            live, stop = run_live(scripted_system(tmp_path / "home", **settings), patience or Patience())
            stack.callback(stop)
            return live

        yield make


@pytest.fixture
def live(make_live: Callable[..., Live]) -> Live:
    return make_live()
