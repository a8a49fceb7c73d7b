"""Quotas per user: requests a minute and tokens a day. Refusals say when to try again.

The minute is a sliding window, whatever is done to the machine's clock; the day is a UTC day. Usage from
before this process started is read once, in a thread; a ledger that does not answer refuses nobody.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from openclaw_rl.errors import RequestError
from openclaw_rl.users import Person

_MINUTE_S, _DAY_S = 60.0, 86400.0
_MAX_WAIT_S = 2.0


@dataclass(slots=True)
class _Used:
    day: int
    tokens: int
    requests: deque[float] = field(default_factory=deque)


class Quotas:
    """``used`` returns the tokens that a user has used since a time."""

    def __init__(
        self,
        limits: Callable[[str], Person],
        used: Callable[[str, float], int],
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._before, self._clock, self._ticks = limits, used, clock, ticks
        self._used: dict[str, _Used] = {}

    async def take(self, user: str) -> None:
        """RequestError if the user is over a limit; else count one request."""
        person = self._limits(user)
        if person.requests_per_minute is None and person.tokens_per_day is None:
            return
        if user not in self._used:
            found = await self._read(user, self._day)
            self._used.setdefault(user, found)
        now, mine = self._ticks(), self._today(user)
        while mine.requests and mine.requests[0] <= now - _MINUTE_S:
            mine.requests.popleft()
        most = person.requests_per_minute
        if most is not None and len(mine.requests) >= most:
            raise _over(f"{most} requests a minute", mine.requests[-most] + _MINUTE_S - now)
        if person.tokens_per_day is not None and mine.tokens >= person.tokens_per_day:
            raise _over(f"{person.tokens_per_day} tokens a day", (mine.day + 1) * _DAY_S - self._clock())
        mine.requests.append(now)

    def add(self, user: str, tokens: int) -> None:
        if user in self._used:
            self._today(user).tokens += tokens

    @property
    def _day(self) -> int:
        return int(self._clock() // _DAY_S)

    async def _read(self, user: str, day: int) -> _Used:
        try:
            reading = asyncio.to_thread(self._before, user, day * _DAY_S)
            return _Used(day, await asyncio.wait_for(reading, _MAX_WAIT_S))
        except Exception:  # the ledger is down or stuck
            return _Used(day, 0)

    def _today(self, user: str) -> _Used:
        known = self._used[user]
        if known.day != self._day:
            known.day, known.tokens = self._day, 0
        return known


def _over(limit: str, wait_s: float) -> RequestError:
    seconds = max(1, math.ceil(wait_s))
    return RequestError(
        f"Your limit of {limit} is reached; try again in {seconds} s. The owner may raise it: "
        "'openclaw-rl users quota'.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=seconds,
    )
