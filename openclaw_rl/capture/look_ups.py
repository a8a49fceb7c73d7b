"""Reads of the ledger that a request waits for, and how long it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class LookUps:
    """Runs reads in threads and waits at most ``max_wait_s`` for each.

    After one that took longer or failed, none is tried for ``pause_s``, so that a stuck database delays one
    request, not all. A slow read goes on in its thread; once it succeeds, the database answers again and the
    pause is over.
    """

    def __init__(self, max_wait_s: float, pause_s: float) -> None:
        self._max_wait_s, self._pause_s = max_wait_s, pause_s
        self._paused_until = 0.0

    @property
    def are_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    async def look(self, read: Callable[[], T]) -> T:
        looking = asyncio.ensure_future(asyncio.to_thread(read))
        looking.add_done_callback(self._ended)
        done, _ = await asyncio.wait({looking}, timeout=self._max_wait_s)
        if not done:
            self._pause()
            raise TimeoutError(f"the ledger did not answer within {self._max_wait_s:g} s")
        return looking.result()

    def _ended(self, looking: asyncio.Future[T]) -> None:
        if looking.cancelled() or looking.exception() is not None:
            self._pause()
        else:
            self._paused_until = 0.0

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + self._pause_s
