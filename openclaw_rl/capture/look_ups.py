"""Reads of the ledger that a request waits for, and how long it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

T = TypeVar("T")
_LEDGER_FAILED = (sa.exc.DBAPIError, sa.exc.TimeoutError, OSError)
#: A pause is never shorter, so that a ledger that is written but hardly read delays only some requests.
_SHORTEST_PAUSE_S = 1.0


class LookUps:
    """Runs reads in threads and waits at most ``max_wait_s`` for each.

    After one that took longer, or that the database failed, none is tried for ``pause_s``, so that a stuck
    database delays one request, not all. The pause ends early when the database answers again: when a slow
    read succeeds after all, or when something was written. Any other error is that request's alone.
    """

    def __init__(self, max_wait_s: float, pause_s: float, num_written: Callable[[], int] = lambda: 0) -> None:
        self._max_wait_s, self._pause_s, self._num_written = max_wait_s, pause_s, num_written
        self._paused_at: float | None = None
        self._written_before = 0
        self._answered_at = 0.0

    @property
    def are_paused(self) -> bool:
        if self._paused_at is None:
            return False
        paused_s = time.monotonic() - self._paused_at
        is_over = paused_s >= self._pause_s
        if paused_s >= _SHORTEST_PAUSE_S and self._num_written() > self._written_before:
            is_over = True
        return not is_over

    async def look(self, read: Callable[[], T]) -> T:
        began = time.monotonic()
        looking = asyncio.ensure_future(asyncio.to_thread(read))
        looking.add_done_callback(partial(self._ended, began))
        done, _ = await asyncio.wait({looking}, timeout=self._max_wait_s)
        if not done:
            self._pause(began)
            raise TimeoutError(f"the ledger did not answer within {self._max_wait_s:g} s")
        return looking.result()

    def _ended(self, began: float, looking: asyncio.Future[T]) -> None:
        error = None if looking.cancelled() else looking.exception()
        if looking.cancelled() or _is_ledgers(error):
            self._pause(began)
        elif error is None:
            self._answered_at, self._paused_at = time.monotonic(), None

    def _pause(self, began: float) -> None:
        """Unless another read succeeded since: a connection that a cut broke may fail long after it."""
        if began >= self._answered_at:
            self._paused_at, self._written_before = time.monotonic(), self._num_written()


def _is_ledgers(error: BaseException | None) -> bool:
    """Whether the database failed; a value that it cannot store is the request's fault."""
    return isinstance(error, _LEDGER_FAILED) and not isinstance(error, sa.exc.DataError)
