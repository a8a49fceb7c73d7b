"""The serve process: it listens, follows the version that the ledger names, and keeps learning alive."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from openclaw_rl import __version__
from openclaw_rl.config import Config, to_environment
from openclaw_rl.loop import build_serving
from openclaw_rl.processes.parts import engine_socket
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.processes.supervise import Supervisor
from openclaw_rl.serve.private import create_private_app

log = logging.getLogger(__name__)
_FOLLOW_S = 0.5
#: Longer than clients keep idle connections: whoever closes one while the other sends costs a request.
_KEEP_ALIVE_S = 300


async def serve(config: Config, progress: Callable[[str], None]) -> None:
    """Serve until told to stop; then finish what is in flight."""
    import uvicorn

    from openclaw_rl.serve.listen import bind, claim_home

    claim = claim_home(config.home)
    listener = bind(config.serve.host, config.serve.port)
    system = await asyncio.to_thread(build_serving, config, progress)
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
    work = [_follow(system), system.dashboard.follow(), _open_private_door(config, system)]
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
        _greet(system, url, progress)
    # Learning stops first: nothing new should reach the engine while replies are being finished.
    await _when(lambda: public.should_exit or running.done())
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    await running
    claim.announce("")


async def _follow(system: ServingSystem) -> None:
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


async def _remember(system: ServingSystem) -> None:
    """What the judge learned of a user is known to their next request within a moment."""
    while True:
        with suppress(Exception):  # a database that is away is no reason to stop remembering
            await asyncio.to_thread(system.memory.refresh)
        await asyncio.sleep(_FOLLOW_S)


async def _open_private_door(config: Config, system: ServingSystem) -> None:
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


async def _when(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def _greet(system: ServingSystem, url: str, progress: Callable[[str], None]) -> None:
    key = system.keys.key_of("default") if system.config.serve.auth else "none"
    progress(f"""
OpenClaw-RL {__version__} serves {system.config.serve.upstream or system.gateway.model_name}
  API        {url}/v1
  dashboard  {url}
  key        {key}
  data       {system.config.home}

Try it:
  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "{system.gateway.model_name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
""")
