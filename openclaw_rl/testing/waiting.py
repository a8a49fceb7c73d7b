"""Polling with a deadline, and a clock that can be moved on; nothing waits for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(check: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """The first truthy value of ``check``; AssertionError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)
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
