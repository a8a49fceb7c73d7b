"""What a trainer in another process asks the engine on its GPU, over the private socket."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from openclaw_rl.engine.remote import EngineGone, RemoteEngine
from openclaw_rl.serve.listen import Listener, bind_private
from openclaw_rl.serve.private import create_private_app
from openclaw_rl.testing import ScriptedEngine, byte_tokenizer
from openclaw_rl.types import GenerateRequest, GpuOffer, SamplingParams


class Busy(ScriptedEngine):
    def num_live(self) -> int:
        return 3


@pytest.fixture
def engines() -> list[ScriptedEngine]:
    return [Busy(byte_tokenizer()), ScriptedEngine(byte_tokenizer())]


@pytest.fixture
async def remotes(tmp_path: Path, engines: list[ScriptedEngine]) -> AsyncIterator[list[RemoteEngine]]:
    """Of an engine that shares a GPU, and of one that has none."""
    offer = {"weights": {}, "taken_later": 5, "part": 0.8}
    apps = [create_private_app(engines[0], lambda: offer), create_private_app(engines[1])]
    servers, running, clients = [], [], []
    for n, app in enumerate(apps):
        door = bind_private(tmp_path / f"{n}.sock")
        servers.append(Listener(uvicorn.Config(app, lifespan="off", log_level="error")))
        running.append(asyncio.create_task(servers[n].serve(sockets=[door])))
        clients.append(RemoteEngine(tmp_path / f"{n}.sock"))
        await clients[n].connect()
    yield clients
    for client, server, task in zip(clients, servers, running, strict=True):
        await client.close()
        server.should_exit = server.force_exit = True
        await task


async def test_the_offer_and_the_number_of_users(remotes: list[RemoteEngine]) -> None:
    shares, plain = remotes
    assert await asyncio.to_thread(shares.on_gpu) == GpuOffer({}, 5, 0.8)
    assert await asyncio.to_thread(shares.num_live) == 3
    assert await asyncio.to_thread(plain.on_gpu) is None
    assert await asyncio.to_thread(plain.num_live) == 0


@pytest.mark.parametrize(
    ("fails", "told"),
    [(ValueError("no room for a reply"), ValueError), (RuntimeError("a pass failed"), EngineGone)],
)
async def test_what_is_refused_is_not_waited_for(
    remotes: list[RemoteEngine], engines: list[ScriptedEngine], fails: Exception, told: type[Exception]
) -> None:
    """Learning waited for the engine without end over a prompt that left no room for a reply."""
    engines[1].say("a reply", fail_after=2, error=fails)
    with pytest.raises(told, match=str(fails)):
        async for _ in remotes[1].generate(GenerateRequest([1, 2], SamplingParams(9))):
            pass


# httpcore leaves a socket that could not connect to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_is_gone(tmp_path: Path) -> None:
    remote = RemoteEngine(tmp_path / "nobody.sock")
    with pytest.raises(EngineGone):
        await asyncio.to_thread(remote.on_gpu)
    assert await asyncio.to_thread(remote.num_live) == 0
    await remote.close()
    gc.collect()
