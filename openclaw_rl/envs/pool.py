"""A pool of environments: each is leased to one episode at a time and returned whatever happens.

A lease ends when it is returned or expires; the clock starts when the lease is granted, not while waiting for
it. Every operation has an id: repeated with the same id, it returns its first result, so a retry never acts
twice. An environment that raised is closed and replaced by a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from openclaw_rl.types import Environment, Message, Observation, Outcome, StepResult, Task

T = TypeVar("T")


class EnvironmentFailed(RuntimeError):
    """The environment broke or timed out; not the agent's fault."""


class LeaseExpired(EnvironmentFailed):
    """The episode outlasted its lease."""

    def __init__(self) -> None:
        super().__init__("the lease has expired")


@dataclass
class Lease:
    """An environment reserved for one episode."""

    environment: Environment
    expires_at: float
    step_seconds: float
    broken: bool = False
    _done: dict[str, Any] = field(default_factory=dict)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def expired(self) -> bool:
        return time.monotonic() > self.expires_at

    async def reset(self, task: Task, operation: str) -> Observation:
        return await self._once(operation, lambda: self.environment.reset(task))

    async def step(self, action: Message, operation: str) -> StepResult:
        return await self._once(operation, lambda: self.environment.step(action))

    async def evaluate(self, operation: str) -> Outcome:
        return await self._once(operation, self.environment.evaluate)

    async def _once(self, operation: str, act: Callable[[], Awaitable[T]]) -> T:
        async with self._busy:
            if operation in self._done:
                found: T = self._done[operation]
                return found
            if self.expired:
                raise LeaseExpired
            if self.broken:
                raise EnvironmentFailed("the environment broke")
            try:
                async with asyncio.timeout(self.step_seconds):
                    result = await act()
            except Exception as error:
                self.broken = True
                if self.expired:  # the cause, whatever the error says: the environment was reclaimed
                    raise LeaseExpired from error
                raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
            self._done[operation] = result
            return result


class Pool:
    """At most ``size`` leases at once; further callers wait. ``make`` creates an environment."""

    def __init__(
        self,
        make: Callable[[], Environment],
        size: int,
        episode_seconds: float = 600.0,
        step_seconds: float = 120.0,
    ) -> None:
        self._make, self._places = make, asyncio.Semaphore(size)
        self._episode_seconds, self._step_seconds = episode_seconds, step_seconds
        self._idle: list[Environment] = []
        self._leases: dict[int, Lease] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def num_leased(self) -> int:
        return len(self._leases)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        async with self._places:
            if self._reaper is None:
                self._reaper = asyncio.create_task(self._reap())
            environment = self._idle.pop() if self._idle else self._make()
            lease = Lease(environment, time.monotonic() + self._episode_seconds, self._step_seconds)
            self._leases[id(lease)] = lease
            try:
                yield lease
            finally:
                del self._leases[id(lease)]
                await asyncio.shield(self._take_back(lease))

    async def _take_back(self, lease: Lease) -> None:
        """Close it at once, so that nothing of an episode survives; a broken one is not reused."""
        if await self._close(lease.environment) and not lease.broken:
            self._idle.append(lease.environment)

    async def _close(self, environment: Environment) -> bool:
        """Whether it closed without an error."""
        try:
            async with asyncio.timeout(self._step_seconds):
                await environment.close()
        except Exception:
            return False
        return True

    async def _reap(self) -> None:
        """Reclaim expired leases: the environment is closed, and the holder's next operation fails."""
        while True:
            await asyncio.sleep(min(1.0, self._episode_seconds / 4))
            for lease in list(self._leases.values()):
                if lease.expired and not lease.broken:
                    lease.broken = True
                    # In its own task: one that hangs must not keep others from being reclaimed.
                    closing = asyncio.create_task(self._reclaim(lease))
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    async def _reclaim(self, lease: Lease) -> None:
        await self._close(lease.environment)

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None
        await asyncio.gather(*self._closing, *map(self._close, self._idle))
        self._idle.clear()
