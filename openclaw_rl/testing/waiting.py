"""Polling with a deadline, instead of waiting for a fixed time."""

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
