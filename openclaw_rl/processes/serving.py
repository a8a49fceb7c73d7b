"""The serve process: listens, serves the versions that the ledger names, and supervises the learn process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from openclaw_rl import __version__
from openclaw_rl.config import Config, to_environment
from openclaw_rl.loop import build_serving
from openclaw_rl.processes.parts import engine_socket, gpu_handles
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.processes.supervise import Supervisor
from openclaw_rl.serve.private import create_private_app

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_FOLLOW_S = 0.5


async def serve(config: Config, progress: Callable[[str], None]) -> None:
    """Serve until a stop signal; then finish the replies in flight."""
    from openclaw_rl.serve.listen import bind, claim_home

    claim = claim_home(config.home)
    listener = bind(config.serve.host, config.serve.port)
    url = url_of(listener)  # now: a signal may close it at any moment
    # Exit at once: there are no requests yet, and loading a model cannot be interrupted otherwise.
    _on_stop(lambda number: os._exit(128 + number))
    system = await asyncio.to_thread(build_serving, config, progress)
    public = _public_server(config, system)
    _on_stop(partial(_stop, public, progress))
    with suppress(ValueError, OSError):  # missing weights must not keep the server from starting
        await system.follow()
    background = [asyncio.create_task(_reported(job)) for job in _background_jobs(config, system)]
    running = asyncio.create_task(public.serve(sockets=[listener]))
    await _wait_until(lambda: public.started or running.done(), pause_s=0.02)
    if public.started:
        claim.announce(json.dumps({"url": url, "pid": os.getpid()}))
        _greet(system, url, progress)
    # Learning stops first: nothing new should reach the engine while replies finish.
    await _wait_until(lambda: public.should_exit or running.done())
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    await running
    claim.announce("")


def _on_stop(act: Callable[[int], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act, number)


def _stop(server: uvicorn.Server, progress: Callable[[str], None], number: int) -> None:
    """Finish the replies in flight; a second Ctrl-C does not wait. Recorded turns are already durable."""
    if server.should_exit and number == signal.SIGINT:
        os._exit(128 + number)
    if not server.should_exit:
        progress("stopping: replies in flight are finished first; Ctrl-C again stops at once")
    server.should_exit = True


def _public_server(config: Config, system: ServingSystem) -> uvicorn.Server:
    from openclaw_rl.serve.connections import server_settings
    from openclaw_rl.serve.listen import Listener

    return Listener(
        server_settings(
            system.app(),
            config.serve,
            log_level=config.log_level,
            timeout_graceful_shutdown=config.serve.drain_timeout_s,
        )
    )


def _background_jobs(config: Config, system: ServingSystem) -> list[Coroutine[None, None, None]]:
    jobs = [_follow(system), system.dashboard.follow(), _serve_engine_socket(config, system)]
    if config.serve.notes != "off":
        jobs.append(_refresh_hints(system))
    if config.learn.learn:
        supervisor = Supervisor(["learn"], {**os.environ, **to_environment(config)})
        system.learning = supervisor.health
        jobs.append(supervisor.run())
    return jobs


async def _reported(job: Coroutine[None, None, None]) -> None:
    """Serving goes on without the job, but not without a word on why."""
    try:
        await job
    except Exception as error:
        log.exception("a job of the server ended: %s", str(error).partition("\n")[0])


def url_of(listener: socket.socket) -> str:
    """One that can be opened on this machine, also where the server listens on all addresses."""
    host, port = listener.getsockname()[:2]
    host = _LOOPBACK.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _follow(system: ServingSystem) -> None:
    """Publishing and rolling back only write to the ledger; this polls it and switches the engine."""
    problem = ""
    while True:
        await asyncio.sleep(_FOLLOW_S)
        try:
            await system.follow()
            problem = ""
        except Exception as error:
            if str(error) != problem:  # log it once, not twice a second
                problem = str(error)
                log.error("cannot load the version that the ledger names: %s", problem.partition("\n")[0])


async def _refresh_hints(system: ServingSystem) -> None:
    """Polls the ledger, so that a user's new hints reach their next request."""
    while True:
        with suppress(Exception):  # the database may be unavailable for a while
            await asyncio.to_thread(system.memory.refresh)
        await asyncio.sleep(_FOLLOW_S)


async def _serve_engine_socket(config: Config, system: ServingSystem) -> None:
    """Offer the engine to the learn process, however that was started, until cancelled."""
    import uvicorn

    from openclaw_rl.serve.connections import KEEP_ALIVE_S
    from openclaw_rl.serve.listen import Listener, bind_private

    listener = bind_private(engine_socket(config))
    app = create_private_app(system.engine, partial(gpu_handles, system.engine))
    private = Listener(
        uvicorn.Config(
            app,
            log_level=config.log_level,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="off",
        )
    )
    serving = asyncio.create_task(private.serve(sockets=[listener]))
    try:
        await asyncio.Event().wait()
    finally:
        private.should_exit = private.force_exit = True
        await serving


async def _wait_until(condition: Callable[[], bool], pause_s: float = 0.05) -> None:
    while not condition():
        await asyncio.sleep(pause_s)


def _greet(system: ServingSystem, url: str, progress: Callable[[str], None]) -> None:
    key = system.keys.key_of("default") if system.config.serve.auth else "none"
    progress(f"""
OpenClaw-RL {__version__} serves {system.config.serve.upstream or system.gateway.model_name}
  API        {url}/v1
  dashboard  {url}
  key        {key}
  data       {system.config.home}

Open the dashboard and sign in with the key. Or ask from here:
  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "{system.gateway.model_name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
""")
