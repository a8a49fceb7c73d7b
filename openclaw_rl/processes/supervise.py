"""Keeps the learn process running; serving never depends on it.

The child shares our process group, dies with us even if we are killed, and is restarted with growing pauses.
Whatever happens to it, serving continues.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
#: After a child has run this long, the restart pause is reset.
_STABLE_S = 120.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class ChildHealth:
    running: bool = False
    num_restarts: int = 0
    last_exit: str | None = None


class Supervisor:
    """Runs one command, and restarts it, for as long as this process runs."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "openclaw_rl", *arguments]
        self._environment = dict(os.environ if environment is None else environment)
        self.health = ChildHealth()

    async def run(self) -> None:
        """Run until cancelled; the child is then terminated, and killed if it does not stop."""
        pause_s = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            self.health.last_exit = await self._run_once()
            self.health.num_restarts += 1
            if time.monotonic() - started > _STABLE_S:
                pause_s = _FIRST_PAUSE_S
            log.error("the learn process exited (%s); restarting it in %g s", self.health.last_exit, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _run_once(self) -> str:
        """How the child ended."""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_prepare_child,
            )
        except OSError as error:  # no memory or no process is left just now
            return f"it could not be started: {error}"
        self.health.running = True
        try:
            return f"exit code {await child.wait()}"
        except asyncio.CancelledError:
            await _stop(child)
            raise
        finally:
            self.health.running = False


def _prepare_child() -> None:
    """Runs in the new process: lowers its priority below serving, and makes it die with its parent.

    Nice, but not the idle scheduling class: while users stream all day, that would never get a core. Ctrl-C
    reaches it, too: until it has a handler of its own, ending it is left to us.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    die_with_parent(signal.SIGKILL)


def die_with_parent(number: int) -> None:
    """In a new process: get this signal when the parent dies. Linux only; does nothing elsewhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


async def _stop(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), 10)
        except TimeoutError:
            child.kill()
