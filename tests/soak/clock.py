"""A clock that a test moves, for processes of its own: what they read as the time of day is its time.

Only ``time.time`` moves. What waits for seconds to pass goes by ``time.monotonic``, and so does the system.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

DAY_S = 86_400.0
_SECONDS = struct.Struct("d")
_real = time.time


class Clock:
    """How far it is ahead is kept in a file, so that every process sees it at once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.exists():
            file.write_bytes(_SECONDS.pack(0.0))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _SECONDS.size)

    def move(self, seconds: float) -> None:
        """Negative: back."""
        self.set_ahead(self._ahead() + seconds)

    def set_ahead(self, seconds: float) -> None:
        self._shared[:] = _SECONDS.pack(seconds)

    def now(self) -> float:
        return _real() + self._ahead()

    def install(self) -> None:
        """From now on it is this process's clock."""
        time.time = self.now

    def _ahead(self) -> float:
        [seconds] = _SECONDS.unpack(self._shared[:])
        return float(seconds)
