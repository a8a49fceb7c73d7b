"""Keeping the learn process alive beside the serving one, and never the other way round.

The child shares our process group, dies with us even if we are killed, and is started again with
growing pauses. Whatever happens to it, serving goes on.
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
#: A child that lived this long starts with a clean slate.
_STABLE_S = 120.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class ChildHealth:
    running: bool = False
    num_restarts: int = 0
    last_exit: str | None = None


class Supervisor:
    """Runs one command for as long as we live."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "openclaw_rl", *arguments]
        self._environment = dict(os.environ if environment is None else environment)
        self.health = ChildHealth()

    async def run(self) -> None:
        """Until cancelled; the child is then asked to stop, and made to."""
        pause_s = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_prepare_child,
            )
            self.health.running = True
            try:
                code = await child.wait()
            except asyncio.CancelledError:
                await _stop(child)
                raise
            finally:
                self.health.running = False
            self.health.num_restarts += 1
            self.health.last_exit = f"exit code {code}"
            if time.monotonic() - started > _STABLE_S:
                pause_s = _FIRST_PAUSE_S
            log.error(
                "the learn process ended (%s); starting it again in %g s", self.health.last_exit, pause_s
            )
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)


def _prepare_child() -> None:
    """In the new process, before it runs: people's chats go first, and no orphan stays behind.

    Nice, but not in the idle class: where somebody streams all day long, that would never get a core.
    """
    os.nice(10)
    die_with_parent(signal.SIGKILL)


def die_with_parent(number: int) -> None:
    """In a new process: get this signal when whoever started it is gone. Linux only; elsewhere nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


async def _stop(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), 10)
        except TimeoutError:
            child.kill()
