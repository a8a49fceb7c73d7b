"""The system on one screen: what is made of what, and in which order.

    agent ─HTTP─▶ gateway ─▶ engine          serve: answers, whatever else happens
                     └─▶ capture ─▶ ledger    every turn durable before its last chunk

Only this module and ``cli.py`` know the stages; the stages know only the root modules.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl import __version__
from openclaw_rl.capture import inspect
from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.ledger import Ledger, sqlite_url
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.config import Config
from openclaw_rl.models import default_cache_dir, resolve_model
from openclaw_rl.render import create_renderer
from openclaw_rl.serve.app import Views, create_app
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.gateway import Gateway, Limits
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.types import Engine, Json, Renderer

if TYPE_CHECKING:
    from fastapi import FastAPI

    from openclaw_rl.engine.local import LocalEngine


@dataclass
class System:
    """Everything that serves, wired."""

    config: Config
    engine: Engine
    ledger: Ledger
    recorder: Recorder
    gateway: Gateway
    keys: KeyRing
    started_at: float

    def app(self) -> FastAPI:
        views = Views(
            sessions=lambda limit, after: inspect.view_sessions(self.ledger, limit, after),
            session=lambda session_id: inspect.view_session(self.ledger, session_id),
            turn=lambda turn_id: inspect.view_turn(self.ledger, turn_id),
            policies=self.policies,
            status=self.status,
            readiness=self.readiness,
            gauges=self.gauges,
        )

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await self.close()

        return create_app(self.gateway, self.keys if self.config.serve.auth else None, views, lifespan)

    async def close(self) -> None:
        """Everything recorded, then everything released."""
        await self.gateway.drain()
        await self.engine.close()
        await self.recorder.close()
        self.ledger.close()

    # --- what the outside may see ------------------------------------------------------------

    def readiness(self) -> tuple[bool, Json]:
        health = self.recorder.health()
        return True, {"status": "ok" if health.ok else "degraded", "ledger": asdict(health)}

    def status(self) -> Json:
        engine, health = self.engine.status(), self.recorder.health()
        try:
            funnel: Json | None = inspect.view_counts(self.ledger)
        except Exception:  # the ledger is down; `ledger` below says so
            funnel = None
        return {
            "version": __version__,
            "status": self.readiness()[1]["status"],
            "model": self.gateway.model_name,
            "policy_version": engine.serving_version,
            "uptime_s": time.time() - self.started_at,
            "busy": False,
            "funnel": funnel,
            "queues": {"running": engine.num_running, "waiting": engine.num_waiting},
            "engine": {"cached_tokens": engine.cached_tokens, "context_length": self.engine.context_length},
            "ledger": asdict(health),
            "last_step": None,
            "learn": None,
        }

    def policies(self) -> Json:
        engine = self.engine.status()
        return {
            "object": "list",
            "data": [
                {
                    "version": version,
                    "parent": None,
                    "status": "serving" if version == engine.serving_version else "retired",
                    "gate": None,
                    "metrics": None,
                    "num_samples": None,
                    "created_at": None,
                }
                for version in engine.versions
            ],
        }

    def gauges(self) -> dict[str, float]:
        engine, health = self.engine.status(), self.recorder.health()
        return {
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "cached_tokens": engine.cached_tokens,
            "policy_version": engine.serving_version,
            "turns_recorded": health.num_recorded,
            "turns_unsaved": health.num_unsaved,
            "turns_lost": health.num_lost,
        }


def build(config: Config, say: Callable[[str], None] = lambda line: None) -> System:
    """Load the model and open the ledger; nothing listens yet."""
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ledger = open_ledger(config)
    say(f"model {config.engine.model}: looking for it")
    path = resolve_model(config.engine.model, default_cache_dir())
    say("loading the model")
    return assemble(config, ledger, build_engine(config, path), build_renderer(config, path))


def assemble(config: Config, ledger: Ledger, engine: Engine, renderer: Renderer) -> System:
    """Wire the parts; whatever serves the protocols may stand in for the engine and the renderer."""
    keys = KeyRing(config.home / "keys.json", os.environ.get("OPENCLAW_RL_API_KEY"))
    recorder = Recorder(ledger)
    gateway = Gateway(
        engine,
        renderer,
        LedgerCapture(ledger, recorder),
        model_name=config.serve.served_model_name or Path(config.engine.model).name.removesuffix(".gguf"),
        limits=Limits(config.engine.max_running + config.serve.max_waiting, config.serve.default_max_tokens),
        metrics=Metrics(),
    )
    return System(config, engine, ledger, recorder, gateway, keys, time.time())


def build_engine(config: Config, path: Path) -> LocalEngine:
    # torch takes seconds to import: the ledger's commands do without, and a clash is said before.
    from openclaw_rl.engine.local import LocalEngine, LocalEngineOptions

    chosen = config.engine
    options = LocalEngineOptions(
        device=chosen.device,
        dtype=chosen.dtype,
        kernel=chosen.kernel,
        num_threads=chosen.num_threads,
        max_running=chosen.max_running,
        chunk_tokens=chosen.chunk_tokens,
        max_step_s=chosen.max_step_s,
        cache_tokens=chosen.cache_tokens,
    )
    return LocalEngine(path, options)


def build_renderer(config: Config, path: Path) -> Renderer:
    from transformers import AutoTokenizer

    from openclaw_rl.engine.weights import read_checkpoint

    checkpoint = read_checkpoint(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    return create_renderer(tokenizer, checkpoint.model_type, config.engine.renderer, checkpoint.eos_ids)


def open_ledger(config: Config) -> Ledger:
    return Ledger(config.ledger.ledger_url or sqlite_url(config.home / "serve.db"))


async def serve(config: Config, say: Callable[[str], None]) -> None:
    """Serve until told to stop; then finish what is in flight."""
    import uvicorn

    from openclaw_rl.serve.listen import bind, claim_home

    claim = claim_home(config.home)
    listener = bind(config.serve.host, config.serve.port)
    system = await asyncio.to_thread(build, config, say)
    server = uvicorn.Server(
        uvicorn.Config(
            system.app(),
            log_level=config.log_level,
            access_log=False,
            timeout_graceful_shutdown=config.serve.drain_timeout_s,
        )
    )
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn drains, then raises the signal again for whoever listened before: that must not
        # turn a clean stop into a death by signal.
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not running.done():
        await asyncio.sleep(0.02)
    if server.started:
        claim.announce(json.dumps({"url": url, "pid": os.getpid()}))
        _greet(system, url, say)
    await running
    claim.announce("")


def _greet(system: System, url: str, say: Callable[[str], None]) -> None:
    key = system.keys.key_of("default") if system.config.serve.auth else "none"
    say(f"""
OpenClaw-RL {__version__} serves {system.gateway.model_name}
  API   {url}/v1
  key   {key}
  data  {system.config.home}

Try it:
  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "{system.gateway.model_name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
""")
