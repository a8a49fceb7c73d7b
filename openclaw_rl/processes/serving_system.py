"""The wired serving side: the app, the versions that the engine serves, and what users may decide."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openclaw_rl.algo import create_algorithm, settings_for, step_size
from openclaw_rl.capabilities import check_training
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.memory import HintMemory
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.config import Config
from openclaw_rl.errors import RequestError
from openclaw_rl.processes.dashboard import Dashboard
from openclaw_rl.processes.supervise import ChildHealth
from openclaw_rl.scopes import ENVIRONMENTS, is_environment
from openclaw_rl.serve.app import create_app
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.takeover import TakeOverAnswerer
from openclaw_rl.train import publish
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, EVERYONE, Engine, Json, Message, Scope
from openclaw_rl.users import Users

if TYPE_CHECKING:
    from fastapi import FastAPI

_KEEP_RETIRED_S = 120.0


@dataclass
class ServingSystem:
    """All parts of the serving side, wired."""

    config: Config
    engine: Engine
    ledgers: Ledgers
    store: PolicyStore
    recorder: Recorder
    gateway: Gateway
    keys: KeyRing
    memory: HintMemory
    started_at: float = field(default_factory=time.time)
    learning: ChildHealth | None = field(default=None)
    """State of the learn process; None if this server runs without one."""
    policy_problem: str | None = field(default=None)
    """Why the engine does not serve the version that the ledger names; None if it does."""
    _retired_since: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Created here too, so that an unavailable algorithm or loss is reported at the start.
        learn, self._sizes = self.config.learn, dict[Scope, int]()
        for scope in (EVERYONE, ENVIRONMENTS):
            settings = settings_for(scope, learn, self.config.serve.take_over)
            needs = create_algorithm(settings).needs
            self._sizes[scope] = step_size(settings, needs).samples
            if learn.learn and learn.train and not self.config.passes_on:
                check_training(self.config, self.engine.capabilities, needs)
        self.dashboard = Dashboard(self)

    def samples_per_step(self, scope: Scope) -> int:
        return self._sizes[ENVIRONMENTS if is_environment(scope) else EVERYONE]

    def app(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await self.close()

        users = Users.in_home(self.config.people)
        return create_app(self.gateway, self.keys, self.dashboard, users, self.config.serve, lifespan)

    async def record_event(
        self, turn_id: str | None, kind: str, data: Json, messages: list[Message] | None = None
    ) -> None:
        """RequestError if it is not durable: a user's decision must not be lost silently."""
        if not await self.recorder.record(TurnEvent(turn_id, kind, time.time(), messages, data)):
            raise RequestError(
                "This could not be stored: the ledger cannot be written now, most likely because the disk "
                "is full. Send it again once /readyz says 'ok'.",
                status=503,
                code="not_stored",
                retry_after_s=5,
            )

    async def close(self) -> None:
        """Record everything, then release everything."""
        await self.gateway.drain()
        await self.gateway.answerer.close()
        await self.engine.close()
        await self.recorder.close()
        self.ledgers.close()

    # --- which version serves --------------------------------------------------------------------

    async def promote(self, version: int, why: str, scope: Scope = EVERYONE) -> Json:
        """Choose a version by hand. Written to the ledger first; this engine switches at once."""
        await asyncio.to_thread(publish.promote, self.ledgers.policies, self.store, version, why, scope)
        await self.follow()
        return {"version": version, "status": "serving"}

    async def follow(self) -> None:
        """Serve the versions that the ledger names, and unload those that are no longer needed."""
        before, answerer = self.engine.status(), self.gateway.answerer
        if isinstance(answerer, TakeOverAnswerer):
            answerer.shares = await asyncio.to_thread(TakeOvers(self.ledgers.learn).shares)
        try:
            named = await publish.follow(self.ledgers.policies, self.engine, self.store.weights)
        except (ValueError, OSError) as error:
            self.policy_problem = str(error).partition("\n")[0]
            raise
        self.policy_problem = None
        used = {BASE_VERSION, *named.values(), *before.serving.values()}
        for version in set(before.versions) - used:
            policy = await asyncio.to_thread(self.ledgers.policies.policy, version)
            if policy is not None and policy.status in ("retired", "rejected") and self._is_idle(version):
                await self.engine.unload(version)

    def _is_idle(self, version: int) -> bool:
        """Conversations may keep using a version for a while after it was replaced."""
        now = time.monotonic()
        since = max(self._retired_since.setdefault(version, now), self.dashboard.used_at.get(version, 0.0))
        if now - since > _KEEP_RETIRED_S:
            del self._retired_since[version]
            return True
        return False
