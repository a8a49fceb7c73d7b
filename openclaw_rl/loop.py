"""The system on one screen: what is made of what, and in which order.

    agent ─HTTP─▶ gateway ─▶ engine            serve: answers, whatever else happens
                     └─▶ capture ─▶ ledger     every turn durable before its last chunk
                                      │
      engine ◀─engine.sock─ judge ◀─ desk      learn: pulls what was captured, judges it
        ▲                     └─▶ journal      with the engine that serves, at low priority
        └─ policies/n ◀─ gate ◀─ trainer ◀─ algo ◀─┘   verdicts → samples → step → checked → served

Only this module and ``cli.py`` know the stages; the stages know only the root modules.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl import __version__, health
from openclaw_rl.capture import inspect
from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger, sqlite_url
from openclaw_rl.capture.lineage import Lineage
from openclaw_rl.capture.memory import HintMemory
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.config import Config, to_environment
from openclaw_rl.engine.absent import AbsentEngine
from openclaw_rl.models import default_cache_dir, eos_ids, resolve_model
from openclaw_rl.outlook import Outlook
from openclaw_rl.plugins import load_object
from openclaw_rl.render import create_renderer
from openclaw_rl.serve.app import Views, create_app
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.gateway import Answerer, Gateway
from openclaw_rl.serve.local import LocalAnswerer
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.private import create_private_app
from openclaw_rl.serve.upstream import UpstreamAnswerer
from openclaw_rl.supervise import ChildHealth, Supervisor
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, Engine, Json, Renderer

if TYPE_CHECKING:
    from fastapi import FastAPI

    from openclaw_rl.engine.local import LocalEngine

log = logging.getLogger(__name__)
_FOLLOW_S = 0.5
_KEEP_RETIRED_S = 120.0
#: Longer than clients keep idle connections: whoever closes one while the other sends costs a request.
_KEEP_ALIVE_S = 300


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
                await engine.load(wanted, self.store.path(wanted))
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


def open_store(config: Config) -> PolicyStore:
    return PolicyStore(config.learn.policies or config.home / "policies")


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
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=config.serve.drain_timeout_s,
        )
    )
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn drains, then raises the signal again for whoever listened before: that must not
        # turn a clean stop into a death by signal.
        asyncio.get_running_loop().add_signal_handler(number, public.handle_exit, number, None)
    with suppress(ValueError, OSError):  # weights that are gone must not keep the server from starting
        await system.follow()
    work = [_follow(system), system.outlook.follow(), _open_private_door(config, system)]
    if config.serve.hint_memory:
        work.append(_remember(system))
    if config.learn.learn:
        supervisor = Supervisor(["learn"], {**os.environ, **to_environment(config)})
        system.learning = supervisor.health
        work.append(supervisor.run())
    beside = [asyncio.create_task(each) for each in work]
    running = asyncio.create_task(public.serve(sockets=[listener]))
    while not public.started and not running.done():
        await asyncio.sleep(0.02)
    if public.started:
        claim.announce(json.dumps({"url": url, "pid": os.getpid()}))
        _greet(system, url, say)
    # Learning stops first: nothing new should reach the engine while replies are being finished.
    await _when(lambda: public.should_exit or running.done())
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    await running
    claim.announce("")


async def _follow(system: System) -> None:
    """Whoever publishes or rolls back writes it into the ledger; the engine switches within a moment."""
    problem = ""
    while True:
        await asyncio.sleep(_FOLLOW_S)
        try:
            await system.follow()
            problem = ""
        except Exception as error:
            if str(error) != problem:  # once, not twice a second
                problem = str(error)
                log.error("the version in the ledger cannot be served: %s", problem.partition("\n")[0])


async def _remember(system: System) -> None:
    """What the judge learned of a user is known to their next request within a moment."""
    while True:
        with suppress(Exception):  # a database that is away is no reason to stop remembering
            await asyncio.to_thread(system.memory.refresh)
        await asyncio.sleep(_FOLLOW_S)


async def _open_private_door(config: Config, system: System) -> None:
    """The engine for the learn process, wherever that was started from, until cancelled."""
    import uvicorn

    from openclaw_rl.serve.listen import SideServer, bind_private

    door = bind_private(engine_socket(config))
    app = create_private_app(system.engine)
    private = SideServer(
        uvicorn.Config(
            app,
            log_level=config.log_level,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            lifespan="off",
        )
    )
    serving = asyncio.create_task(private.serve(sockets=[door]))
    try:
        await asyncio.Event().wait()
    finally:
        private.should_exit = private.force_exit = True
        await serving


def engine_socket(config: Config) -> Path:
    return config.home / "engine.sock"


async def _when(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def _greet(system: System, url: str, say: Callable[[str], None]) -> None:
    key = system.keys.key_of("default") if system.config.serve.auth else "none"
    say(f"""
OpenClaw-RL {__version__} serves {system.config.serve.upstream or system.gateway.model_name}
  API        {url}/v1
  dashboard  {url}
  key        {key}
  data       {system.config.home}

Try it:
  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "{system.gateway.model_name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
""")
