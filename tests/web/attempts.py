"""A group of attempts at a task, as ``train`` makes it, in a process of its own: browser tests spare no loop.

python attempts.py ENV URL KEY REPLAYS SIZE    the task as JSON on standard input
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from openclaw_rl.envs import EnvironmentParts, create_environment
from openclaw_rl.envs.groups import roll_out_groups
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent
from openclaw_rl.types import Task


async def at_once() -> None:
    """Nothing holds agents back."""


async def main(name: str, url: str, key: str, replays: str, size: str) -> None:
    task = Task(**json.load(sys.stdin))
    pool = Pool(lambda: create_environment(name, EnvironmentParts(pictures=True)), 1)
    agent = Agent(url, key, replays=Path(replays))
    try:
        groups = [group async for group in roll_out_groups(agent, pool, [task], int(size), 1, at_once)]
    finally:
        await pool.close()
    print(json.dumps([group.solved for group in groups]))


asyncio.run(main(*sys.argv[1:]))
