"""The system on one screen: what is made of what, and in which order.

    agent ─HTTP─▶ gateway ─▶ engine            serve: answers, whatever else happens
                     └─▶ capture ─▶ ledger     every turn durable before its last chunk
                                      │
      engine ◀─engine.sock─ judge ◀─ desk      learn: pulls what was captured, judges it
                              └─▶ journal      with the engine that serves, at low priority

Only this module and ``cli.py`` know the stages; the stages know only the root modules.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl import __version__
from openclaw_rl.capture import inspect
from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.desk import LedgerDesk
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger, sqlite_url
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.config import Config, to_environment
from openclaw_rl.models import default_cache_dir, eos_ids, resolve_model
from openclaw_rl.render import create_renderer
from openclaw_rl.serve import chat
from openclaw_rl.serve.app import Views, create_app
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.gateway import Gateway, Limits
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.private import create_private_app
from openclaw_rl.supervise import ChildHealth, Supervisor
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
    journal: Journal
    recorder: Recorder
    gateway: Gateway
    keys: KeyRing
    started_at: float
    learning: ChildHealth | None = field(default=None)
    """Of the learn process; None when this server runs without one."""

    def app(self) -> FastAPI:
        ledger, journal = self.ledger, self.journal
        views = Views(
            sessions=lambda limit, after, user: inspect.view_sessions(ledger, limit, after, user),
            session=lambda session_id, user: inspect.view_session(ledger, journal, session_id, user),
            turn=lambda turn_id, user: inspect.view_turn(ledger, journal, turn_id, user),
            policies=self.policies,
            status=self.status,
            readiness=self.readiness,
            gauges=self.gauges,
            tell=self.tell,
        )

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await self.close()

        return create_app(self.gateway, self.keys if self.config.serve.auth else None, views, lifespan)

    async def tell(self, turn_id: str | None, kind: str, data: Json) -> None:
        await self.recorder.record(TurnEvent(turn_id, kind, time.time(), data=data))

    async def close(self) -> None:
        """Everything recorded, then everything released."""
        await self.gateway.drain()
        await self.engine.close()
        await self.recorder.close()
        self.journal.close()
        self.ledger.close()

    # --- what the outside may see ------------------------------------------------------------

    def readiness(self) -> tuple[bool, Json]:
        health = self.recorder.health()
        learning = None if self.learning is None else asdict(self.learning)
        well = health.ok and (self.learning is None or self.learning.running)
        return True, {"status": "ok" if well else "degraded", "ledger": asdict(health), "learn": learning}

    def status(self) -> Json:
        engine, health = self.engine.status(), self.recorder.health()
        try:
            funnel: Json | None = inspect.view_counts(self.ledger, self.journal)
        except Exception:  # the ledger is down; `ledger` below says so
            funnel = None
        _, ready = self.readiness()
        return {
            "version": __version__,
            "status": ready["status"],
            "model": self.gateway.model_name,
            "policy_version": engine.serving_version,
            "uptime_s": time.time() - self.started_at,
            "busy": bool(self.learning and funnel and funnel["judge_due"]),
            "funnel": funnel,
            "queues": {
                "running": engine.num_running,
                "waiting": engine.num_waiting,
                "judge": funnel["judge_queue"] if funnel else None,
            },
            "engine": {"cached_tokens": engine.cached_tokens, "context_length": self.engine.context_length},
            "ledger": asdict(health),
            "learn": ready["learn"],
            "last_step": None,
        }

    def policies(self) -> Json:
        engine = self.engine.status()
        blank = dict.fromkeys(("parent", "gate", "metrics", "num_samples", "created_at"))
        rows = [
            {"version": v, **blank, "status": "serving" if v == engine.serving_version else "retired"}
            for v in engine.versions
        ]
        return {"object": "list", "data": rows}

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


# --- making the parts ------------------------------------------------------------------------


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
    return System(config, engine, ledger, open_journal(config), recorder, gateway, keys, time.time())


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


def load_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def build_renderer(config: Config, path: Path, tokenizer: Any = None) -> Renderer:
    from transformers import AutoConfig

    model_type = AutoConfig.from_pretrained(path).model_type
    return create_renderer(
        tokenizer or load_tokenizer(path), model_type, config.engine.renderer, eos_ids(path)
    )


def open_ledger(config: Config) -> Ledger:
    return Ledger(config.ledger.ledger_url or sqlite_url(config.home / "serve.db"))


def open_journal(config: Config) -> Journal:
    return Journal(config.ledger.ledger_url or sqlite_url(config.home / "learn.db"))


# --- the two processes -----------------------------------------------------------------------


async def serve(config: Config, say: Callable[[str], None]) -> None:
    """Serve until told to stop; then finish what is in flight."""
    import uvicorn

    from openclaw_rl.serve.listen import bind, claim_home

    claim = claim_home(config.home)
    listener = bind(config.serve.host, config.serve.port)
    system = await asyncio.to_thread(build, config, say)
    public = uvicorn.Server(
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
        asyncio.get_running_loop().add_signal_handler(number, public.handle_exit, number, None)
    learning = asyncio.create_task(_run_learning(config, system)) if config.learn.learn else None
    running = asyncio.create_task(public.serve(sockets=[listener]))
    while not public.started and not running.done():
        await asyncio.sleep(0.02)
    if public.started:
        claim.announce(json.dumps({"url": url, "pid": os.getpid()}))
        _greet(system, url, say)
    # Learning stops first: nothing new should reach the engine while replies are being finished.
    await _when(lambda: public.should_exit or running.done())
    if learning is not None:
        learning.cancel()
        await asyncio.gather(learning, return_exceptions=True)
    await running
    claim.announce("")


async def _run_learning(config: Config, system: System) -> None:
    """The engine's private door, and the process that comes through it, until cancelled."""
    import uvicorn

    from openclaw_rl.serve.listen import SideServer, bind_private

    door = bind_private(engine_socket(config))
    app = create_private_app(system.engine)
    private = SideServer(uvicorn.Config(app, log_level=config.log_level, access_log=False, lifespan="off"))
    serving = asyncio.create_task(private.serve(sockets=[door]))
    supervisor = Supervisor(["learn"], {**os.environ, **to_environment(config)})
    system.learning = supervisor.health
    try:
        await supervisor.run()
    finally:
        private.should_exit = private.force_exit = True
        await serving


async def learn(config: Config) -> None:
    """Judge what was captured, until told to stop. Needs a server's engine for the embedded judge."""
    from openclaw_rl.engine.remote import EngineGone, RemoteEngine
    from openclaw_rl.judge import JudgeParts, create_judge
    from openclaw_rl.judge.worker import JudgeWorker

    path = await asyncio.to_thread(resolve_model, config.engine.model, default_cache_dir())
    engine = RemoteEngine(engine_socket(config))
    while True:
        with suppress(EngineGone):
            await engine.connect()
            break
        await asyncio.sleep(0.5)
    ledger, journal = open_ledger(config), open_journal(config)
    tokenizer = load_tokenizer(path)
    wanted = config.judge
    parts = JudgeParts(
        engine=engine,
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        renderer=build_renderer(config, path, tokenizer),
        num_votes=wanted.majority_vote_n,
        threshold=wanted.majority_vote_threshold,
        base_url=wanted.judge_url or "",
        model=wanted.judge_model or "",
    )
    judge = create_judge(wanted.judge, parts)
    desk = LedgerDesk(ledger, journal, chat.internal_messages, wanted.session_idle_s)
    worker = JudgeWorker(desk, judge, concurrency=wanted.judge_concurrency, timeout_s=wanted.judge_timeout_s)
    try:
        await worker.run()
    finally:
        await judge.close()
        await engine.close()
        journal.close()
        ledger.close()


def engine_socket(config: Config) -> Path:
    return config.home / "engine.sock"


async def _when(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


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
