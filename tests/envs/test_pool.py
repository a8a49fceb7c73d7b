"""Environments that are lent: bounded, given back, not acted on twice, and broken ones replaced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_rl.envs.pool import EnvironmentFailed, LeaseExpired, Pool
from openclaw_rl.types import Message, Observation, Outcome, StepResult, Task

TASK = Task("t", {})
ACTION: Message = {"role": "assistant", "content": "go"}


class Counter:
    """Counts what is done to it; breaks or dawdles when it is told to."""

    made: list[Counter]

    def __init__(self) -> None:
        self.steps, self.closed, self.open = 0, 0, False
        self.made.append(self)

    def tasks(self) -> list[Task]:
        return [TASK]

    async def reset(self, task: Task) -> Observation:
        self.open = True
        return Observation([{"role": "user", "content": "begin"}])

    async def step(self, action: Message) -> StepResult:
        if action["content"] == "break":
            raise OSError("the disk is gone")
        if action["content"] == "until closed":
            while not self.closed:
                await asyncio.sleep(0.01)
            raise OSError("closed")
        if action["content"] == "dawdle":
            await asyncio.sleep(1000)
        self.steps += 1
        return StepResult(Observation([]))

    async def evaluate(self) -> Outcome:
        return Outcome(1.0, True)

    async def close(self) -> None:
        self.closed += 1
        self.open = False


@pytest.fixture(autouse=True)
def made() -> list[Counter]:
    Counter.made = []
    return Counter.made


async def test_no_more_at_once_than_there_are_places(made: list[Counter]) -> None:
    pool, most = Pool(Counter, 3), 0

    async def episode() -> None:
        nonlocal most
        async with pool.lease() as lease:
            most = max(most, pool.num_leased)
            await lease.reset(TASK, "reset")
            await asyncio.sleep(0)

    await asyncio.gather(*(episode() for _ in range(20)))
    assert most == 3
    assert pool.num_leased == 0
    assert len(made) == 3, "given back, and lent again"
    assert not any(each.open for each in made)
    await pool.close()


async def test_an_operation_done_again_acts_once(made: list[Counter]) -> None:
    pool = Pool(Counter, 1)
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        first = await lease.step(ACTION, "step 1")
        assert await lease.step(ACTION, "step 1") is first
        await asyncio.gather(*(lease.step(ACTION, "step 2") for _ in range(5)))
    assert made[0].steps == 2
    await pool.close()


async def test_a_broken_environment_is_not_lent_again(made: list[Counter]) -> None:
    pool = Pool(Counter, 1)
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        with pytest.raises(EnvironmentFailed, match="the disk is gone"):
            await lease.step({**ACTION, "content": "break"}, "step 1")
        with pytest.raises(EnvironmentFailed, match="broke"):
            await lease.evaluate("evaluate")
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
    assert len(made) == 2
    assert made[0].closed
    await pool.close()


async def test_what_takes_too_long_has_failed(made: list[Counter]) -> None:
    pool = Pool(Counter, 1, step_seconds=0.5)
    async with pool.lease() as lease:
        with pytest.raises(EnvironmentFailed, match="Timeout"):
            await lease.step({**ACTION, "content": "dawdle"}, "step 1")
    await pool.close()


async def test_a_lease_that_is_held_too_long_is_taken_away(made: list[Counter]) -> None:
    pool = Pool(Counter, 1, episode_seconds=2)
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        while not made[0].closed:
            await asyncio.sleep(0.01)
        with pytest.raises(EnvironmentFailed):
            await lease.step(ACTION, "step 1")
    assert pool.num_leased == 0
    await pool.close()


async def test_one_that_hangs_when_it_is_closed_holds_no_other_up(made: list[Counter]) -> None:
    class Hanging(Counter):
        async def close(self) -> None:
            await super().close()
            if self is made[0]:
                await asyncio.sleep(1000)

    pool, ended = Pool(Hanging, 2, episode_seconds=1, step_seconds=1), asyncio.Event()

    async def hold() -> None:
        async with pool.lease() as lease:
            await lease.reset(TASK, "reset")
            await ended.wait()

    holding = [asyncio.create_task(hold()) for _ in range(2)]
    async with asyncio.timeout(20):
        while len(made) < 2 or not made[1].closed:
            await asyncio.sleep(0.01)
    ended.set()
    await asyncio.gather(*holding)
    await pool.close()
    assert pool.num_leased == 0


async def test_an_expired_lease_is_told_from_an_environment_that_broke(made: list[Counter]) -> None:
    pool = Pool(Counter, 1, episode_seconds=1)
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        while not made[0].closed:
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseExpired):
            await lease.step(ACTION, "step 1")
    async with pool.lease() as lease:
        with pytest.raises(LeaseExpired):  # in the middle of an operation
            await lease.step({**ACTION, "content": "until closed"}, "step 1")
    await pool.close()


async def test_waiting_for_a_place_costs_nothing_of_the_lease(made: list[Counter]) -> None:
    pool = Pool(Counter, 1, episode_seconds=30)
    order: list[Any] = []

    async def second() -> None:
        async with pool.lease() as lease:
            order.append(lease.expires_at)

    async with pool.lease() as first:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.05)
        order.append(first.expires_at)
    await waiting
    assert order[1] > order[0]
    await pool.close()


async def test_a_cancelled_episode_gives_its_environment_back(made: list[Counter]) -> None:
    pool = Pool(Counter, 1)

    async def episode() -> None:
        async with pool.lease() as lease:
            await lease.reset(TASK, "reset")
            await lease.step({**ACTION, "content": "dawdle"}, "step 1")

    running = asyncio.create_task(episode())
    while not made or not made[0].open:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert pool.num_leased == 0
    assert not made[0].open
    await pool.close()
