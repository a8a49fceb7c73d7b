"""Polling with a deadline, and a clock that can be moved on; nothing waits for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: Seconds between two looks: the longer the wait so far, the longer. Fifty looks a second at a busy server
#: would slow down what is waited for.
_FIRST_S, _LONGEST_S, _SHARE = 0.02, 0.5, 0.05


def wait_until(check: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """The first truthy value of ``check``; AssertionError after ``timeout_s``."""
    began = time.monotonic()
    while not (value := check()):
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(min(_LONGEST_S, max(_FIRST_S, _SHARE * waited)))
    return value


async def until(check: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """Like ``wait_until``, without blocking the event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.002)
    return value


def skip_time(seconds: float) -> None:
    """Moves the running event loop's time on: whatever waits for a time-out that long has waited.

    Only the loop's timers see it; ``time.monotonic`` goes on as ever. It does not go back: a timer that was
    set in the meantime would then wait for all of it.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
