"""A scripted system that listens on a real port, for clients that bring their own connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
