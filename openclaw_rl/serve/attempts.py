"""Rate limit on wrong keys, per address.

A key that was accepted before is never delayed, so nobody is locked out by others behind the same address.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable

_MOST, _WITHIN_S = 20, 60.0
_REMEMBERED = 1000


class Attempts:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def wait_s(self, address: str, key: str) -> int:
        """0 if this key may be tried now; else how long to wait, in seconds."""
        times = self._failed.get(address)
        if not times or len(times) < _MOST or _digest(key) in self._right:
            return 0
        return max(0, int(times[0] + _WITHIN_S - self._clock()) + 1)

    def passed(self, key: str) -> None:
        self._right[_digest(key)] = None
        if len(self._right) > _REMEMBERED:
            self._right.popitem(last=False)

    def failed(self, address: str) -> None:
        times = self._failed.setdefault(address, deque(maxlen=_MOST))
        times.append(self._clock())
        self._failed.move_to_end(address)
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
