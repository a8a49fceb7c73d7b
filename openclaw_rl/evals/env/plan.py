"""The command ``openclaw-rl eval env``: runs episodes through the public API; reports the share solved."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from tqdm import tqdm

from openclaw_rl.envs import EnvironmentParts, create_environment, environment_maker
from openclaw_rl.envs.fit import fit_agent
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent, Episode, roll_out
from openclaw_rl.envs.tasks import SPLITS, of_split
from openclaw_rl.envs.variables import read_variables
from openclaw_rl.evals.env.interval import interval
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.types import Environment, Json, Task


@dataclass(frozen=True, slots=True)
class EvalPlan:
    env: str
    parts: EnvironmentParts
    tasks: list[Task]
    attempts: int
    parallel: int
    force_calls: bool
    make: Callable[[], Environment]


def run(options: argparse.Namespace, home: Path) -> int:
    plan = read_plan(options, os.environ)
    if options.url:
        key = os.environ.get("OPENCLAW_RL_API_KEY", "")
        episodes = asyncio.run(evaluate(plan, options.url, key))
    else:
        out = options.out or home / "evals" / "env"
        with ServerProcess(out / "home", "--no-learn", *options.serve_flags.split()) as server:
            key = KeyRing(out / "home" / "keys.json").key_of("default") or ""
            episodes = asyncio.run(evaluate(plan, server.url, key))
    print(json.dumps(summary(episodes)) if options.json else table(plan.env, episodes))
    return 0


def read_plan(options: argparse.Namespace, environment: Mapping[str, str]) -> EvalPlan:
    """ValueError for invalid options, before anything is loaded."""
    env, steps, parallel = read_variables(options, environment, parallel=1)
    parts = EnvironmentParts(options.tasks, steps)
    every = create_environment(env, parts).tasks()
    tasks = of_split(every, options.split)
    if not tasks:
        counts = ", ".join(f"{split} {len(of_split(every, split))}" for split in SPLITS)
        raise ValueError(
            f"{env} has no tasks of the split {options.split} ({counts}); choose another --split, or "
            "--split all"
        )
    if options.limit:  # evenly spaced, so that every template is represented
        tasks = tasks[:: max(1, len(tasks) // options.limit)][: options.limit]
    make = environment_maker(env, parts, options.pool)
    return EvalPlan(env, parts, tasks, options.attempts, parallel, not options.free, make)


async def evaluate(
    plan: EvalPlan, url: str, key: str, transport: httpx.AsyncBaseTransport | None = None
) -> list[Episode]:
    agent = Agent(f"{url.rstrip('/').removesuffix('/v1')}/v1", key, force_calls=plan.force_calls)
    agent = await fit_agent(agent, plan.env, transport)
    pool = Pool(plan.make, plan.parallel)
    attempts = [(task, n) for task in plan.tasks for n in range(plan.attempts)]
    found = []
    try:
        with tqdm(total=len(attempts), unit="episode") as bar:
            async for episode in roll_out(agent, pool, attempts, plan.parallel, transport):
                found.append(episode)
                bar.update(1)
                bar.set_postfix(solved=sum(each.solved for each in found))
    finally:
        await pool.close()
    return found


def summary(episodes: Sequence[Episode]) -> Json:
    """Counts only attempts with a known outcome; other failures are listed by kind."""
    known = [episode for episode in episodes if episode.outcome is not None]
    solved = sum(episode.solved for episode in known)
    low, high = interval(solved, len(known))
    failures = Counter(episode.failure for episode in episodes if episode.failure)
    templates = sorted({*map(_template, known)})
    by = {template: _share([e for e in known if _template(e) == template]) for template in templates}
    return {
        "solved": solved,
        "of": len(known),
        "low": low,
        "high": high,
        "failures": dict(failures),
        "by": by,
    }


def table(name: str, episodes: Sequence[Episode]) -> str:
    found = summary(episodes)
    failed = ", ".join(f"{kind} {number}" for kind, number in sorted(found["failures"].items())) or "none"
    share = found["solved"] / found["of"] if found["of"] else 0.0
    lines = [
        f"{name}: {found['solved']} of {found['of']} solved, {share:.2f} "
        f"[{found['low']:.2f}, {found['high']:.2f}]",
        f"not solved, by cause: {failed}",
        *(f"  {template:16} {share:.2f}" for template, share in found["by"].items()),
    ]
    return "\n".join(lines)


def _template(episode: Episode) -> str:
    return str(episode.task.data.get("template", "tasks"))


def _share(episodes: Sequence[Episode]) -> float:
    return sum(episode.solved for episode in episodes) / len(episodes) if episodes else 0.0
