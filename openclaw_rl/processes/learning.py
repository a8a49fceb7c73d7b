"""The learn process. It uses the server's engine and is restarted by its supervisor.

It is a separate process, so that nothing it does can delay a reply. One per SQLite ledger; on PostgreSQL
several hosts share the work (``membership``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from openclaw_rl.capture import database
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.config import Config
from openclaw_rl.engine.remote import EngineGone, RemoteEngine
from openclaw_rl.loop import build_learning
from openclaw_rl.processes.learning_system import ServedModel
from openclaw_rl.processes.membership import membership
from openclaw_rl.processes.parts import (
    build_engine,
    build_renderer,
    engine_socket,
    load_tokenizer,
    model_folder,
    open_ledgers,
    text_encoder,
)
from openclaw_rl.types import Engine

_CHECKPOINT_S = 5.0


async def learn(config: Config) -> None:
    """Judge and train on what was captured, until cancelled."""
    if not config.learn.own_engine:  # replies are decoded faster by threads that spin
        wait_quietly(os.environ)
        # Rows of all lengths would leave holes that no later row fits in.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    path = None
    if not config.passes_on:
        path = await asyncio.to_thread(model_folder, config)
    ledgers = open_ledgers(config)
    async with membership(config.home, ledgers) as leases:
        served = None if path is None else await _reach_model(config, path)
        system = build_learning(config, ledgers, served, leases)
        emptying = asyncio.create_task(_checkpoint(ledgers))
        try:
            await system.run()
        finally:
            emptying.cancel()
            await system.close()
            if served is not None:
                await served.engine.close()
            ledgers.close()


def wait_quietly(environment: MutableMapping[str, str]) -> None:
    """Make the trainer's threads sleep while they wait for each other; call before torch is loaded.

    If another program takes a core, a spinning thread waits for the one that lost it for a whole time slice,
    at every product: a step takes many times as long. On an idle machine it makes no difference.
    """
    if not environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        environment["GOMP_SPINCOUNT"] = "100"


async def _checkpoint(ledgers: Ledgers) -> None:
    """Otherwise SQLite's write-ahead log would grow for as long as the process runs."""
    while True:
        await asyncio.sleep(_CHECKPOINT_S)
        with suppress(Exception):  # a reader is active, or the disk is full: try again next time
            await asyncio.to_thread(database.checkpoint, ledgers.learn.db)


async def _reach_model(config: Config, path: Path) -> ServedModel:
    engine, tokenizer = await _reach_engine(config, path), load_tokenizer(path)
    renderer = build_renderer(config, path, tokenizer)
    return ServedModel(engine, path, renderer, text_encoder(tokenizer))


async def _reach_engine(config: Config, path: Path) -> Engine:
    """The server's engine, through its private socket; or our own if the server is on another host."""
    if config.learn.own_engine:
        return await asyncio.to_thread(build_engine, config, path)
    engine = RemoteEngine(engine_socket(config))
    while True:
        with suppress(EngineGone):
            await engine.connect()
            return engine
        await asyncio.sleep(0.5)
