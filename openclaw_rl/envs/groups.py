"""Several parallel attempts at each task; their rewards go to the server once the group is complete.

A group in which something other than the model failed is reported as failed, and nothing is learned from it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import httpx

from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent, Episode, attempt, connect
from openclaw_rl.types import Json, Task

_TRIES, _PAUSE_S = 5, 1.0


@dataclass(slots=True)
class Group:
    """The attempts at one task."""

    id: str
    task: Task
    size: int
    episodes: list[Episode] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """What failed other than the model; empty if nothing did."""
        return next((each.failure for each in self.episodes if each.outcome is None), "")

    @property
    def solved(self) -> int:
        return sum(each.solved for each in self.episodes)


async def roll_out_groups(
    agent: Agent,
    pool: Pool,
    tasks: Iterable[Task],
    size: int,
    parallel: int,
    may_start: Callable[[], Awaitable[None]],
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Group]:
    """Groups in the order they finish; each waits for ``may_start`` before it starts."""
    waiting: asyncio.Queue[tuple[Group, int] | None] = asyncio.Queue(1)
    done: asyncio.Queue[Group | None] = asyncio.Queue()

    async def produce() -> None:
        for task in tasks:
            await may_start()
            group = Group(f"{task.id}/{uuid.uuid4().hex[:12]}", task, size)
            for number in range(size):
                await waiting.put((group, number))
        for _ in range(parallel):
            await waiting.put(None)

    async def work() -> None:
        while (taken := await waiting.get()) is not None:
            group, number = taken
            group.episodes.append(await attempt(agent, http, pool, group.task, number))
            if len(group.episodes) == size:
                await tell(http, group)
                await done.put(group)

    async def run() -> None:
        try:
            await asyncio.gather(produce(), *(work() for _ in range(parallel)))
        finally:
            await done.put(None)

    async with connect(agent, parallel, transport) as http:
        running = asyncio.create_task(run())
        try:
            while (group := await done.get()) is not None:
                yield group
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def tell(http: httpx.AsyncClient, group: Group) -> None:
    """Report a group's rewards; reporting them again has no effect."""
    known = [episode for episode in group.episodes if episode.turn_ids]
    # An attempt that failed before its first reply has no session to report on, so the others report it.
    silent = any(each.outcome is None and not each.turn_ids for each in group.episodes)
    for episode in known:
        body: Json = {"group": group.id, "size": len(known)}
        if episode.outcome is None or silent:
            body["failure"] = episode.failure if episode.outcome is None else group.failure
        else:
            body["reward"] = episode.outcome.score
        await _post(http, f"/sessions/{episode.session_id}/reward", body)


async def _post(http: httpx.AsyncClient, path: str, body: Json) -> None:
    """Retries while the server is unavailable."""
    for number in range(_TRIES):
        try:
            answer = await http.post(path, json=body)
            if answer.status_code < 500:
                answer.raise_for_status()
                return
        except httpx.TransportError:
            if number == _TRIES - 1:
                raise
        await asyncio.sleep(_PAUSE_S * (number + 1))
    answer.raise_for_status()
