"""Servers on real ports: a scripted system for clients that bring their own connection, and a receiver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import uvicorn

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import wait_until


@contextmanager
def listening(system: ServingSystem) -> Iterator[str]:
    """The URL; the server has stopped when the block is left."""
    server = uvicorn.Server(
        uvicorn.Config(system.app(), host="127.0.0.1", port=0, log_level="error", ws="none")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_until(lambda: server.started, "the scripted server listens")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@contextmanager
def receiving() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a server that accepts everything, and the bodies that were sent to it."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        finally:
            server.shutdown()
            thread.join(30)
