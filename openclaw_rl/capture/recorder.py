"""Durable before the last chunk, at the price of one fsync for everybody waiting.

A thread gathers what arrived while the last commit ran and commits it together. If the ledger
cannot be written (disk full, database down), nobody's reply waits for it: turns stay in a
bounded backlog that is retried, what overflows is counted as lost, and ``health`` says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from openclaw_rl.capture.ledger import Entry, Ledger
from openclaw_rl.types import TurnRecord

log = logging.getLogger(__name__)

#: An entry, and how to tell whoever waits for it.
_Arrival = tuple[Entry, Callable[[], object]]
_MAX_WAIT_S = 5.0
_RETRY_S = 1.0
_BACKLOG = 1000
_CHECKPOINT_S = 5.0


@dataclass(frozen=True, slots=True)
class RecorderHealth:
    ok: bool
    error: str | None
    num_recorded: int
    num_unsaved: int
    """Waiting in memory for the ledger to come back."""
    num_lost: int


class Recorder:
    """Writes entries to one ledger from one thread; ``record`` returns when they are durable."""

    def __init__(self, ledger: Ledger, backlog: int = _BACKLOG) -> None:
        self._ledger = ledger
        self._inbox: SimpleQueue[_Arrival | None] = SimpleQueue()
        self._backlog: deque[Entry] = deque()
        self._backlog_limit = backlog
        self._error: str | None = None
        self._recorded = 0
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    async def record(self, entry: Entry) -> bool:
        """True once the entry is durable; False, without waiting, while the ledger is down."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        self._inbox.put((entry, lambda: loop.call_soon_threadsafe(done.set)))
        try:
            await asyncio.wait_for(done.wait(), _MAX_WAIT_S)
        except TimeoutError:
            self._error = f"the ledger did not answer within {_MAX_WAIT_S:.0f} s"
        return self._error is None

    def health(self) -> RecorderHealth:
        return RecorderHealth(
            self._error is None, self._error, self._recorded, _num_turns(self._backlog), self._lost
        )

    async def close(self) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._lost += _num_turns(self._backlog)

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        checkpointed = time.monotonic()
        open_ = True
        while open_:
            arrived, open_ = self._gather()
            self._write([entry for entry, _ in arrived])
            for _, notify in arrived:
                notify()
            if not self._error and time.monotonic() - checkpointed > _CHECKPOINT_S:
                self._checkpoint()
                checkpointed = time.monotonic()

    def _gather(self) -> tuple[list[_Arrival], bool]:
        """What has arrived, waiting for the first; False when closing."""
        arrived: list[_Arrival] = []
        timeout = _RETRY_S if self._backlog else _CHECKPOINT_S
        try:
            while (item := self._inbox.get(block=not arrived, timeout=timeout)) is not None:
                arrived.append(item)
        except Empty:
            return arrived, True
        return arrived, False

    def _write(self, entries: list[Entry]) -> None:
        self._backlog.extend(entries)
        if not self._backlog:
            return
        try:
            self._append(list(self._backlog))
        except Exception as error:
            if self._error is None:
                log.error("the ledger cannot be written, serving goes on: %s", _first_line(error))
            self._error = _first_line(error)
            while len(self._backlog) > self._backlog_limit:
                self._lost += isinstance(self._backlog.popleft(), TurnRecord)
            return
        if self._error is not None:
            log.warning("the ledger can be written again")
        self._error = None
        self._backlog.clear()

    def _append(self, entries: list[Entry]) -> None:
        try:
            self._ledger.append(entries)
        except ValueError:
            # One malformed entry must not hold up the others: it alone is refused and counted.
            for entry in entries:
                self._append_one(entry)
        else:
            self._recorded += _num_turns(entries)

    def _append_one(self, entry: Entry) -> None:
        try:
            self._ledger.append([entry])
            self._recorded += isinstance(entry, TurnRecord)
        except ValueError as error:
            log.error("an entry was refused by the ledger: %s", error)
            self._lost += isinstance(entry, TurnRecord)

    def _checkpoint(self) -> None:
        try:
            self._ledger.checkpoint()
        except Exception as error:
            log.warning("checkpoint failed: %s", _first_line(error))


def _num_turns(entries: deque[Entry] | list[Entry]) -> int:
    return sum(isinstance(entry, TurnRecord) for entry in entries)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
