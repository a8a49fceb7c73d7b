"""Episodes whose agents and shells are killed at random leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from openclaw_rl.envs.pool import EnvironmentFailed, Pool
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.types import Message, Task

pytestmark = pytest.mark.envs
EPISODES, AT_ONCE = 1000, 16


def running(command: str) -> Message:
    call = {"id": "1", "name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def episode(pool: Pool, chance: random.Random) -> None:
    async with pool.lease() as lease:
        await lease.reset(Task("t", {"instruction": "x", "checks": ["true"]}), "reset")
        await lease.step(
            running(chance.choice(["echo a > b", "sleep 30 & echo c", "yes > /dev/null & sleep 0.05"])), "1"
        )
        await lease.evaluate("evaluate")


def children() -> list[tuple[psutil.Process, str]]:
    """Those that run, by name; a process may end while it is looked at."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, process.name()))
    return found


def kill_a_shell(chance: random.Random) -> None:
    shells = [process for process, name in children() if "bwrap" in name]
    if shells:
        with suppress(psutil.Error):
            chance.choice(shells).kill()


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("openclaw*"))


async def test_nothing_is_left_after_random_kills() -> None:
    before, chance, pool = folders(), random.Random(0), Pool(Terminal, AT_ONCE)
    ends = {"done": 0, "cancelled": 0, "broke": 0}
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        own = random.Random(number)
        async with places:
            task = asyncio.create_task(episode(pool, own))
            if number % 3 == 0:
                await asyncio.sleep(own.random() * 0.3)
                task.cancel()
            elif number % 3 == 1:
                await asyncio.sleep(own.random() * 0.3)
                kill_a_shell(chance)
            try:
                await task
                ends["done"] += 1
            except asyncio.CancelledError:
                ends["cancelled"] += 1
            except EnvironmentFailed:
                ends["broke"] += 1

    await asyncio.gather(*(one(number) for number in range(EPISODES)))
    await pool.close()
    assert sum(ends.values()) == EPISODES
    assert min(ends["done"], ends["cancelled"]) > EPISODES // 10, ends
    assert pool.num_leased == 0
    assert [name for _, name in children() if name in ("bwrap", "sleep", "yes", "bash", "sh")] == []
    assert folders() == before
