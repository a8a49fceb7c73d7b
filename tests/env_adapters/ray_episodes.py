"""Terminals on a real Ray: side by side, killed in the middle, gone at the end. Run where Ray is installed.

python ray_episodes.py POOL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import psutil
import ray

from openclaw_rl.envs import EnvironmentParts, environment_maker
from openclaw_rl.envs.pool import EnvironmentFailed, Pool
from openclaw_rl.types import Message, Task

TASK = Task("t", {"instruction": "Write hello into a.txt.", "checks": ["grep -q hello a.txt"]})


def running(command: str) -> Message:
    call = {"id": "1", "name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def episode(pool: Pool) -> tuple[str, bool]:
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        first = await lease.step(running("echo hello >> a.txt; wc -l < a.txt"), "step 1")
        again = await lease.step(running("echo hello >> a.txt; wc -l < a.txt"), "step 1")
        assert again is first, "said again, it is not done again"
        said = first.observation.messages[0]["content"].strip()
        return said, (await lease.evaluate("evaluate")).solved


async def broken(pool: Pool) -> str:
    """The machine goes in the middle of a command."""
    async with pool.lease() as lease:
        await lease.reset(TASK, "reset")
        acting = asyncio.create_task(lease.step(running("sleep 9"), "step 1"))
        await asyncio.sleep(1)
        ray.kill(lease.environment._actor)  # type: ignore[attr-defined]
        try:
            await acting
        except EnvironmentFailed as error:
            return str(error)
    return "nothing happened"


def sandboxes() -> int:
    """Of this user, whoever began them."""
    found = 0
    for process in psutil.process_iter(["name", "environ", "status"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        found += alive and process.info["name"] == "bwrap" and process.pid not in BEFORE
    return found


BEFORE = {each.pid for each in psutil.process_iter() if each.name() == "bwrap"}


async def main(where: str) -> None:
    pool = Pool(environment_maker("terminal", EnvironmentParts(), where), 4)
    done = await asyncio.gather(*(episode(pool) for _ in range(8)))
    failure = await broken(pool)
    after = await episode(pool)
    leased = pool.num_leased
    await pool.close()
    for _ in range(100):
        if sandboxes() == 0:
            break
        await asyncio.sleep(0.1)
    nodes = len(ray.nodes())
    left = sandboxes()
    ray.shutdown()
    print(json.dumps({"done": done, "failure": failure, "after": after, "leased": leased, "left": left,
                      "nodes": nodes, "pid": os.getpid()}))  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
