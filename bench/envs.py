"""The overhead of running environments in parallel: sandboxes that sleep, and the pool itself.

    python bench/envs.py [--number 32] [--seconds 1]

``sandboxes``: ``--number`` terminals start, sleep in their shells and end, all at once; compared with the
ideal, which is the sleep alone. ``pool``: a step, through a lease, of an environment that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.types import Message, Observation, Outcome, StepResult, Task

STEPS = 2000


def sleeping(seconds: float) -> Message:
    call = {"id": "1", "name": "run", "arguments": f'{{"command": "sleep {seconds:g}"}}'}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def sandboxes(number: int, seconds: float) -> tuple[float, float]:
    """The total time, and the time from when every shell is ready, in seconds."""
    pool = Pool(Terminal, number)
    ready = asyncio.Barrier(number)
    began: list[float] = []

    async def one(n: int) -> None:
        async with pool.lease() as lease:
            await lease.reset(Task(f"{n}", {"instruction": "sleep", "checks": ["true"]}), "reset")
            await ready.wait()
            began.append(time.monotonic())
            await lease.step(sleeping(seconds), "step")
            ended.append(time.monotonic())

    ended: list[float] = []
    started = time.monotonic()
    await asyncio.gather(*(one(n) for n in range(number)))
    whole = time.monotonic() - started
    await pool.close()
    return whole, max(ended) - min(began)


class Nothing:
    """An environment that does nothing."""

    def tasks(self) -> list[Task]:
        return [Task("nothing")]

    async def reset(self, task: Task) -> Observation:
        return Observation([])

    async def step(self, action: Message) -> StepResult:
        return StepResult(Observation([]))

    async def evaluate(self) -> Outcome:
        return Outcome(1.0, True)

    async def close(self) -> None:
        """Nothing to release."""


async def pool_step_s() -> float:
    pool = Pool(Nothing, 1)
    async with pool.lease() as lease:
        await lease.reset(Task("nothing"), "reset")
        started = time.perf_counter()
        for n in range(STEPS):
            await lease.step({"role": "assistant", "content": ""}, f"step {n}")
        taken = time.perf_counter() - started
    await pool.close()
    return taken / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    whole, asleep = asyncio.run(sandboxes(options.number, options.seconds))
    print(
        f"sandboxes: {options.number} that sleep {options.seconds:g} s take {asleep:.2f} s together", end=" "
    )
    print(f"({options.seconds / asleep:.2f} of ideal), {whole:.2f} s with their start and end")
    print(f"pool: {1000 * asyncio.run(pool_step_s()):.3f} ms a step")


if __name__ == "__main__":
    main()
