"""Makes turns durable before a reply's last chunk, with one fsync for all that are waiting.

A thread collects what arrived during the last commit and commits it together. If the ledger
cannot be written (disk full, database down or stuck), no reply waits for it: entries stay in a
bounded backlog that is retried, what does not fit is counted as lost, and ``health`` reports it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.capture.serve_ledger import Entry, ServeLedger
from openclaw_rl.types import TurnRecord

log = logging.getLogger(__name__)

#: Entries per transaction: after an outage the backlog is written in several.
_BATCH = 256
_CHECKPOINT_S = 5.0
#: SQLite's log may grow to this under constant load before the writer itself checkpoints it.
_MAX_LOG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RecorderHealth:
    ok: bool
    error: str | None
    num_recorded: int
    num_unsaved: int
    """Turns in memory that wait for the ledger to become available."""
    num_lost: int


class _Pending:
    """An entry to be written, and the future that its caller awaits."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.is_turn = isinstance(entry, TurnRecord)
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[bool] = self._loop.create_future()

    def resolve(self, durable: bool) -> None:
        """Called from the recorder's thread; the caller may be long gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, durable)

    def _set(self, durable: bool) -> None:
        if not self.outcome.done():
            self.outcome.set_result(durable)


class Recorder:
    """Writes entries to one ledger from one thread; ``record`` returns when they are durable."""

    def __init__(
        self,
        ledger: ServeLedger,
        backlog: int = 1000,
        max_wait_s: float = 5.0,
        retry_s: float = 1.0,
        redact: Callable[[Entry], list[Entry]] = lambda entry: [entry],
    ) -> None:
        """``redact`` returns what to write instead of an entry; it runs in the writer's thread."""
        self._ledger, self._redact = ledger, redact
        self._limit, self._max_wait_s, self._retry_s = backlog, max_wait_s, retry_s
        # Guards everything below; never held while the ledger is in use.
        self._changed = threading.Condition()
        self._pending: deque[_Pending] = deque()
        self._error: str | None = None
        self._closing = False
        self._recorded = 0
        self._lost = 0
        self._log_is_long = False
        self._writer = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._checkpointer = threading.Thread(target=self._checkpoint_all, name="checkpointer", daemon=True)
        self._writer.start()
        self._checkpointer.start()

    async def record(self, entry: Entry) -> bool:
        """True once the entry is durable; False, without waiting, while the ledger is down."""
        pending = _Pending(entry)
        with self._changed:
            if len(self._pending) >= self._limit or self._closing:
                self._lost += pending.is_turn
                return False
            self._pending.append(pending)
            self._changed.notify_all()
            if self._error is not None:
                return False
        done, _ = await asyncio.wait([pending.outcome], timeout=self._max_wait_s)
        if not done:
            with self._changed:
                # Unless it was settled at this very moment: then its own outcome counts.
                if pending in self._pending:
                    self._fail(f"the ledger did not answer within {self._max_wait_s:g} s")
                    return False
        return await pending.outcome

    def health(self) -> RecorderHealth:
        with self._changed:
            unsaved = sum(pending.is_turn for pending in self._pending) if self._error else 0
            return RecorderHealth(self._error is None, self._error, self._recorded, unsaved, self._lost)

    async def close(self) -> None:
        """Write pending entries if the ledger is available; otherwise they are lost."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        for thread in (self._writer, self._checkpointer):
            await asyncio.to_thread(thread.join, self._max_wait_s)
        with self._changed:
            self._lost += sum(pending.is_turn for pending in self._pending)

    # --- the writer's thread -----------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                batch = [self._pending[i] for i in range(min(_BATCH, len(self._pending)))]
                if not batch:
                    return
            if self._write(batch):
                continue
            with self._changed:
                if self._closing or self._changed.wait_for(lambda: self._closing, self._retry_s):
                    return

    def _write(self, batch: list[_Pending]) -> bool:
        """True if the whole batch is settled: durable, or rejected as invalid."""
        try:
            if self._log_is_long:
                self._checkpoint()
            self._ledger.append([entry for pending in batch for entry in self._redact(pending.entry)])
        except ValueError as error:
            if len(batch) > 1:
                # One malformed entry must not hold up the others: it alone is rejected and counted as lost.
                return all(self._write([pending]) for pending in batch)
            log.error("the ledger rejected an entry: %s", error)
            self._settle(batch, durable=False)
        except Exception as error:
            with self._changed:
                self._fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
                for pending in self._pending:
                    pending.resolve(False)
            return False
        else:
            self._settle(batch, durable=True)
        return True

    def _settle(self, batch: list[_Pending], durable: bool) -> None:
        with self._changed:
            num_turns = sum(pending.is_turn for pending in batch)
            if durable:
                self._recorded += num_turns
            else:
                self._lost += num_turns
            for pending in batch:
                self._pending.popleft()
                pending.resolve(durable)
            if self._error is not None:
                log.warning("the ledger can be written again")
            self._error = None

    def _fail(self, error: str) -> None:
        if self._error is None:
            log.error("writing to the ledger failed, serving continues: %s", error)
        self._error = error

    # --- the checkpointer's thread -----------------------------------------------------------

    def _checkpoint_all(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, _CHECKPOINT_S):
                    return
            if self._error is None:
                self._checkpoint()

    def _checkpoint(self) -> None:
        """In its own thread; in the writer's only if that does not keep SQLite's log short."""
        try:
            self._log_is_long = self._ledger.checkpoint() > _MAX_LOG_BYTES
        except Exception as error:
            log.warning("checkpoint failed: %s", type(error).__name__)
