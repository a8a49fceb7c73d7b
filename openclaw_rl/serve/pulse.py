"""Live updates: the status is read once a second for all listeners and sent when it has changed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from openclaw_rl.serve import sse
from openclaw_rl.types import Json

log = logging.getLogger(__name__)
_LOOK_S = 1.0
_QUIET_S = 15.0
#: Fields that change every time; they do not trigger an update.
_RESTLESS = ("uptime_s",)


class Pulse:
    """Polls only while there are listeners."""

    def __init__(self, status: Callable[[], Json], look_s: float = _LOOK_S) -> None:
        self._status, self._look_s = status, look_s
        self._listeners: set[asyncio.Queue[Json | None]] = set()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._last: Json | None = None

    async def listen(self) -> AsyncIterator[bytes]:
        """The status now, then whenever it changes; a comment after 15 s of silence keeps the line open."""
        queue: asyncio.Queue[Json | None] = asyncio.Queue(maxsize=1)
        self._listeners.add(queue)
        try:
            yield sse.event(await asyncio.to_thread(self._status), "status")
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look())
            while not self._stopped:
                try:
                    status = await asyncio.wait_for(queue.get(), _QUIET_S)
                except TimeoutError:
                    yield b": still here\n\n"
                else:
                    if status is not None:
                        yield sse.event(status, "status")
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    def stop(self) -> None:
        """End all streams: a stopping server waits for open requests, and these never end by themselves."""
        self._stopped = True
        for queue in self._listeners:
            _put(queue, None)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                status = await asyncio.to_thread(self._status)
            except Exception as error:
                log.warning("reading the status failed: %s", type(error).__name__)
                continue
            compared = {name: value for name, value in status.items() if name not in _RESTLESS}
            if compared == self._last:
                continue
            self._last = json.loads(json.dumps(compared))
            for queue in self._listeners:
                _put(queue, status)


def _put(queue: asyncio.Queue[Json | None], status: Json | None) -> None:
    """A slow listener gets only the newest status."""
    with suppress(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.put_nowait(status)
