"""The system on one screen: what is made of what, and in which order.

    agent ─HTTP─▶ gateway ─▶ engine            serve: answers, whatever else happens
                     └─▶ capture ─▶ ledger     every turn durable before its last chunk
                                      │
      engine ◀─engine.sock─ judge ◀─ desk      learn: pulls what was captured, judges it
        ▲                     └─▶ journal      with the engine that serves, at low priority
        └─ policies/n ◀─ gate ◀─ trainer ◀─ algo ◀─┘   verdicts → samples → step → checked → served

The stages know only the root modules; here they are wired. ``serving.py`` and ``learning.py`` run the result.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl import health
from openclaw_rl.algo import create_algorithm, step_size
from openclaw_rl.capabilities import check_training
from openclaw_rl.capture import inspect
from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.capture.lineage import Lineage
from openclaw_rl.capture.memory import HintMemory
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.config import Config
from openclaw_rl.engine.absent import AbsentEngine
from openclaw_rl.models import default_cache_dir, resolve_model
from openclaw_rl.outlook import Outlook
from openclaw_rl.parts import build_engine, build_renderer, open_journal, open_ledger, open_store
from openclaw_rl.plugins import load_object
from openclaw_rl.serve.app import Views, create_app
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.gateway import Answerer, Gateway
from openclaw_rl.serve.local import LocalAnswerer
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.upstream import UpstreamAnswerer
from openclaw_rl.supervise import ChildHealth
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, Engine, Json, Renderer

if TYPE_CHECKING:
    from fastapi import FastAPI

_KEEP_RETIRED_S = 120.0


@dataclass
class System:
    """Everything that serves, wired."""

    config: Config
    engine: Engine
    ledger: Ledger
    journal: Journal
    lineage: Lineage
    store: PolicyStore
    recorder: Recorder
    gateway: Gateway
    keys: KeyRing
    memory: HintMemory
    started_at: float
    learning: ChildHealth | None = field(default=None)
    """Of the learn process; None when this server runs without one."""
    _retired_since: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Made here too, so that an algorithm or a loss that cannot be had is said at the start.
        needs = create_algorithm(self.config.learn).needs
        self.step_size = step_size(self.config.learn, needs)
        if self.config.learn.learn and self.config.learn.train and not self.config.serve.upstream:
            check_training(self.config, self.engine.capabilities, needs)
        renderer = self.gateway.renderer
        self.outlook = Outlook(self.config, self.books, self.store, self.engine, renderer, self.tell)

    def app(self) -> FastAPI:
        books = self.books
        views = Views(
            sessions=self.outlook.sessions,
            session=self.outlook.session,
            turn=lambda turn_id, user: inspect.view_turn(books, turn_id, user),
            policies=self.policies,
            promote=self.promote,
            parent=self.parent,
            status=partial(health.status, self),
            readiness=partial(health.readiness, self),
            gauges=partial(health.gauges, self),
            learned=self.config.home / "learn.prom",
            tell=self.tell,
            insights=self.outlook.insights(partial(health.status, self)),
        )

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await self.close()

        return create_app(self.gateway, self.keys if self.config.serve.auth else None, views, lifespan)

    @property
    def books(self) -> inspect.Books:
        return inspect.Books(self.ledger, self.journal, self.lineage)

    async def tell(self, turn_id: str | None, kind: str, data: Json) -> None:
        await self.recorder.record(TurnEvent(turn_id, kind, time.time(), data=data))

    async def close(self) -> None:
        """Everything recorded, then everything released."""
        await self.gateway.drain()
        await self.gateway.answerer.close()
        await self.engine.close()
        await self.recorder.close()
        self.journal.close()
        self.ledger.close()

    # --- what the outside may see and decide --------------------------------------------------

    def policies(self) -> Json:
        return inspect.view_policies(self.lineage, self.engine.status().serving_version)

    def parent(self) -> int | None:
        """The version before the one being served."""
        policy = self.lineage.policy(self.lineage.serving())
        return None if policy is None else policy.parent

    async def promote(self, version: int, why: str) -> Json:
        """Choose a version by hand. The ledger is told first; the engine follows it, here at once."""
        if version != BASE_VERSION and not self.store.has_weights(version):
            raise ValueError(f"there are no weights of policy version {version}")
        await asyncio.to_thread(self.lineage.promote, version, why)
        await self.follow()
        return {"version": version, "status": "serving"}

    async def follow(self) -> None:
        """Serve the version that the ledger names, and let go of those that nobody needs."""
        wanted, engine = await asyncio.to_thread(self.lineage.serving), self.engine
        status = engine.status()
        if wanted != status.serving_version:
            if wanted not in status.versions:
                await engine.load(self.store.weights(wanted))
            await engine.serve_version(wanted)
        for version in set(status.versions) - {BASE_VERSION, wanted, status.serving_version}:
            policy = await asyncio.to_thread(self.lineage.policy, version)
            if policy is not None and policy.status in ("retired", "rejected") and self._is_idle(version):
                await engine.unload(version)

    def _is_idle(self, version: int) -> bool:
        """Conversations may stay with a version for a while after another took over."""
        now = time.monotonic()
        since = max(self._retired_since.setdefault(version, now), self.outlook.used_at.get(version, 0.0))
        if now - since > _KEEP_RETIRED_S:
            del self._retired_since[version]
            return True
        return False


# --- making the parts ------------------------------------------------------------------------


def build(config: Config, say: Callable[[str], None] = lambda line: None) -> System:
    """Load the model and open the ledger; nothing listens yet."""
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ledger = open_ledger(config)
    if config.serve.upstream:
        return pass_through(config, ledger)
    say(f"model {config.engine.model}: looking for it")
    path = resolve_model(config.engine.model, default_cache_dir())
    say("loading the model")
    return assemble(config, ledger, build_engine(config, path), build_renderer(config, path))


def assemble(config: Config, ledger: Ledger, engine: Engine, renderer: Renderer) -> System:
    """Wire the parts; whatever serves the protocols may stand in for the engine and the renderer."""
    answerer = LocalAnswerer(
        engine,
        renderer,
        model_name=config.serve.served_model_name or Path(config.engine.model).name.removesuffix(".gguf"),
        default_max_tokens=config.serve.default_max_tokens,
        generate=load_object("generate function", config.serve.generate) if config.serve.generate else None,
    )
    return _wire(config, ledger, engine, answerer)


def pass_through(config: Config, ledger: Ledger) -> System:
    """The same around a server somewhere else: no model, and so no training."""
    url, key = config.serve.upstream or "", os.environ.get("OPENCLAW_RL_UPSTREAM_API_KEY")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--upstream is {url!r}; it wants a URL such as https://api.example.com/v1")
    name = config.serve.served_model_name or "default"
    answerer = UpstreamAnswerer(url, key, name, config.serve.upstream_timeout_s)
    return _wire(config, ledger, AbsentEngine(), answerer)


def _wire(config: Config, ledger: Ledger, engine: Engine, answerer: Answerer) -> System:
    keys = KeyRing(config.home / "keys.json", os.environ.get("OPENCLAW_RL_API_KEY"))
    recorder, journal = Recorder(ledger), open_journal(config)
    lineage, store, memory = Lineage(ledger, journal), open_store(config), HintMemory(ledger, journal)
    gateway = Gateway(
        answerer,
        LedgerCapture(ledger, recorder),
        max_inflight=config.engine.max_running + config.serve.max_waiting,
        metrics=Metrics(),
        note=memory.note if config.serve.hint_memory else lambda user: None,
    )
    now = time.time()
    return System(config, engine, ledger, journal, lineage, store, recorder, gateway, keys, memory, now)
