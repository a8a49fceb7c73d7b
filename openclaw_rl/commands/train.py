"""``openclaw-rl train``: runs episodes in an environment and trains on them as they finish.

The agents are clients of a server, the running one or one started for this, with their own key and so their
own policy. Progress is logged: a restarted run continues with the next task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from tqdm import tqdm

from openclaw_rl.config import Config, to_environment
from openclaw_rl.envs import EnvironmentParts, create_environment, environment_maker
from openclaw_rl.envs.curriculum import Curriculum
from openclaw_rl.envs.fit import fit_agent
from openclaw_rl.envs.groups import Group, roll_out_groups
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent, Episode, roll_out
from openclaw_rl.envs.tasks import divided, of_split
from openclaw_rl.envs.variables import read_variables
from openclaw_rl.evals.env.interval import interval
from openclaw_rl.evals.env.plan import summary
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.listen import announced
from openclaw_rl.types import Json, Task
from openclaw_rl.users import Users

#: Settings of a short run on a small machine; the rules judge costs almost nothing.
QUICK = {"judge": "rules", "canary_share": 0.0}
#: Batches that may wait for the learner before agents pause.
_AHEAD = 2
_POLL_S = 0.5
#: Groups by which samples to come are estimated, and the fewest expected of an attempt.
_RECENT, _LEAST_YIELD = 20, 0.25
#: Groups between two evaluations on held-out tasks; a short run evaluates only before and after.
_EVAL_EVERY = 50


def run(options: argparse.Namespace, config: Config) -> int:
    plan = read_plan(options, os.environ)
    if plan.notice:
        print(plan.notice)
    with ExitStack() as stack:
        if (url := reachable(announced(config.home))) is None:
            quick = {name: value for name, value in QUICK.items() if getattr(options, name, None) is None}
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in quick.items() if plan.quick]
            stated = {k: v for k, v in to_environment(config).items() if k != "OPENCLAW_RL_PORT"}
            place = config.home / "train" / plan.name
            place.mkdir(parents=True, exist_ok=True)
            server = ServerProcess(config.home, *flags, environment=stated, log=place / "serve.log")
            url = stack.enter_context(server).url
        elif plan.quick:
            print("a server is running with this data folder; its own settings hold, not those of --quick")
        key = key_of(config.home, plan.name)
        log = RunLog(config.home / "train" / plan.name / "log.jsonl")
        asyncio.run(Training(plan, f"{url}/v1", key, log).run())
    print(report(plan, log))
    return 0


def reachable(url: str | None) -> str | None:
    """The running server's URL if it answers; a killed server leaves its URL behind."""
    try:
        return url if url and httpx.get(f"{url}/healthz", timeout=5).status_code == 200 else None
    except httpx.HTTPError:
        return None


@dataclass(frozen=True, slots=True)
class TrainPlan:
    env: str
    name: str
    """The policy's scope is ``env:NAME``."""
    parts: EnvironmentParts
    train: list[Task]
    held_out: list[Task]
    attempts: int
    parallel: int
    minutes: float
    groups: int
    eval_every: int
    seed: int
    quick: bool
    force_calls: bool
    pool: str = "local"
    temperature: float = 1.0
    """Of attempts that are learned from."""

    @property
    def notice(self) -> str:
        """A warning to print before the start."""
        if self.held_out:
            return ""
        return (
            "no task is held out, so nothing will show whether it gets better: add tasks, or name some of "
            'them "split": "validation"'
        )

    def curriculum(self, results: Iterable[Json]) -> Curriculum:
        """``results``: earlier groups, if the run goes on."""
        earlier = ((row["task"], row["solved"], row["of"]) for row in results)
        return Curriculum(self.train, self.attempts, self.seed, earlier)


def read_plan(options: argparse.Namespace, environment: Mapping[str, str]) -> TrainPlan:
    """ValueError for invalid options, before anything is loaded."""
    env, steps, parallel = read_variables(options, environment, parallel=8)
    if options.attempts < 2:
        raise ValueError("--attempts 2 or more: an attempt is learned from by how it compares with others")
    if not 0 < options.temperature <= 2:
        raise ValueError(f"--temperature is {options.temperature:g}; it must be above 0 and at most 2")
    parts = EnvironmentParts(options.tasks, steps, pictures=True)
    tasks = divided(create_environment(env, parts).tasks())
    if options.difficulty is not None:
        tasks = [task for task in tasks if task.data.get("difficulty", 0) <= options.difficulty]
    train, held_out = of_split(tasks, "train"), of_split(tasks, "validation")
    if not train:
        raise ValueError(f"{env} has no tasks of the split train, or none that is so easy")
    held_out = held_out[:: max(1, -(-len(held_out) // options.eval_tasks))]
    return TrainPlan(
        env, env.rpartition(":")[2].lower(), parts, train, held_out, options.attempts, parallel,
        options.minutes or (20.0 if options.quick else math.inf), options.groups,
        (0 if options.quick else _EVAL_EVERY) if options.eval_every is None else options.eval_every,
        options.task_seed, options.quick, not options.free, options.pool, options.temperature,
    )  # fmt: skip


def key_of(home: Path, name: str) -> str:
    """The environment's own key, created when first needed."""
    user, keys, users = f"env.{name}", KeyRing.in_home(home), Users.in_home(home)
    key = keys.key_of(user) or keys.add(user, same_person=True)
    users.change(user, environment=name)
    return key


class RunLog:
    """JSONL log of groups, evaluations and runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, row: Json) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"type": kind, "at": time.time(), **row}) + "\n")

    def of(self, kind: str) -> list[Json]:
        if not self.path.exists():
            return []
        rows = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
        return [row for row in rows if row["type"] == kind]


@dataclass
class Training:
    plan: TrainPlan
    url: str
    key: str
    log: RunLog
    transport: httpx.AsyncBaseTransport | None = None
    _seconds: dict[str, float] = field(default_factory=lambda: {"busy": 0.0, "held": 0.0})
    _yields: deque[float] = field(default_factory=lambda: deque([1.0], maxlen=_RECENT))
    """Samples that an attempt gave, of the newest groups; all alike give none."""
    _curriculum: Curriculum = field(init=False)

    async def run(self) -> None:
        """Run until the time is up or the groups are done; evaluate on held-out tasks before and after."""
        plan, started = self.plan, time.monotonic()
        earlier = self.log.of("group")
        first, self._curriculum = len(earlier), plan.curriculum(earlier)
        fitted = await fit_agent(self._agent, plan.env, self.transport)
        self.plan = plan = replace(plan, force_calls=fitted.force_calls)
        if not self.log.of("evaluation"):
            await self.evaluate(first)
        with tqdm(total=plan.groups or None, initial=first, unit="group") as bar:
            async with self._pool() as pool:
                groups = roll_out_groups(
                    self._agent, pool, self._curriculum.tasks(first, plan.groups or 10**9), plan.attempts,
                    plan.parallel, self._may_start, self.transport,
                )  # fmt: skip
                done = first
                async for group in groups:
                    done += 1
                    self._note(group, bar)
                    if plan.eval_every and done % plan.eval_every == 0:
                        await self.evaluate(done)
                    if time.monotonic() - started > 60 * plan.minutes:
                        break
                await groups.aclose()  # type: ignore[attr-defined]
        await self._settle()
        looks = self.log.of("evaluation")
        version = (await self._status())["policy_version"]
        if not looks or (looks[-1]["groups"], looks[-1]["version"]) != (done, version):
            await self.evaluate(done)
        self.log.write(
            "run",
            {
                "seconds": time.monotonic() - started,
                "parallel": plan.parallel,
                **self._seconds,
                "groups": done - first,
            },
        )

    @property
    def _agent(self) -> Agent:
        replays = self.log.path.parent / "replays"
        plan = self.plan
        return Agent(
            self.url, self.key, temperature=plan.temperature, force_calls=plan.force_calls, replays=replays
        )

    @asynccontextmanager
    async def _pool(self) -> AsyncIterator[Pool]:
        plan = self.plan
        pool = Pool(environment_maker(plan.env, plan.parts, plan.pool), plan.parallel)
        try:
            yield pool
        finally:
            await pool.close()

    def _note(self, group: Group, bar: tqdm[None]) -> None:
        self._seconds["busy"] += sum(each.seconds for each in group.episodes)
        differ = len({each.outcome.score for each in group.episodes if each.outcome}) > 1
        turns = sum(len(each.turn_ids) for each in group.episodes)
        self._yields.append(differ * turns / len(group.episodes))
        failures = Counter(each.failure for each in group.episodes if each.failure)
        known = [each for each in group.episodes if each.outcome is not None]
        self._curriculum.note(group.task.id, group.solved, len(known))
        self.log.write(
            "group",
            {"task": group.task.id, "solved": group.solved, "of": len(known), "failures": failures},
        )
        rows = self.log.of("group")[-20:]
        share = sum(row["solved"] for row in rows) / max(1, sum(row["of"] for row in rows))
        bar.update(1)
        bar.set_postfix(solved=f"{share:.2f}")

    async def evaluate(self, groups: int) -> None:
        """Run each held-out task once; they get no reward, so they are not trained on."""
        if not self.plan.held_out:
            return
        version = (await self._status())["policy_version"]  # training continues meanwhile
        agent, found = Agent(self.url, self.key, force_calls=self.plan.force_calls), list[Episode]()
        async with self._pool() as pool:
            tasks = [(task, 0) for task in self.plan.held_out]
            async for episode in roll_out(agent, pool, tasks, self.plan.parallel, self.transport):
                found.append(episode)
        facts = summary(found)
        last = (await self._status())["policy_version"]
        row = {"groups": groups, "version": version, "last_version": last, **facts}
        self.log.write("evaluation", row)
        tqdm.write(f"held out, {_versions(row)}: {_share(facts)}")

    async def _may_start(self) -> None:
        """Wait while the learner is behind, since waiting samples become stale."""
        since = time.monotonic()
        while True:
            queues = (await self._status())["queues"]
            expected = max(_LEAST_YIELD, sum(self._yields) / len(self._yields))
            waiting = (queues["samples"] or 0) + expected * (queues["attempts"] or 0)
            if waiting < _AHEAD * queues["samples_per_step"]:
                break
            await asyncio.sleep(_POLL_S)
        self._seconds["held"] += time.monotonic() - since

    async def _settle(self) -> None:
        """Wait for a running step to finish, so that its version is evaluated."""
        while (await self._status())["stage"]:
            await asyncio.sleep(_POLL_S)

    async def _status(self) -> Json:
        async with httpx.AsyncClient(transport=self.transport, timeout=60) as http:
            answer = await http.get(f"{self.url}/status", headers={"authorization": f"Bearer {self.key}"})
            found: Json = answer.raise_for_status().json()
            return found


def report(plan: TrainPlan, log: RunLog) -> str:
    """The results: held-out success before and after, failures by cause, and the agents' utilisation."""
    groups, looks, runs = log.of("group"), log.of("evaluation"), log.of("run")
    failures: Counter[str] = Counter()
    for row in groups:
        failures.update(row["failures"])
    seconds = sum(row["seconds"] * row["parallel"] for row in runs)
    busy = sum(row["busy"] for row in runs)
    lines = [
        f"{plan.name}: {len(groups)} groups of {plan.attempts}, in {sum(r['seconds'] for r in runs):.0f} s"
    ]
    lines += [f"  after {row['groups']:4} groups, {_versions(row)}: {_share(row)}" for row in looks]
    if len(looks) > 1:
        lines.append(f"  held-out success, last against first: {compared(looks[0], looks[-1])}")
    lines.append("failed attempts by cause: " + (_counts(failures) or "none"))
    lines.append(f"agents were busy {busy / seconds if seconds else 0:.0%} of the time")
    return "\n".join(lines)


def compared(first: Json, last: Json) -> str:
    """Two success rates, and the two-sided p-value of their difference."""
    (a, n), (b, m) = (first["solved"], first["of"]), (last["solved"], last["of"])
    if not n or not m:
        return "unknown"
    pooled = (a + b) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    chance = math.erfc(abs(b / m - a / n) / error / math.sqrt(2)) if error else 1.0
    return f"{a / n:.2f} -> {b / m:.2f} (p = {chance:.3f})"


def _versions(row: Json) -> str:
    """The versions that answered; several if one was published meanwhile."""
    first, last = row["version"], row.get("last_version", row["version"])
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _share(facts: Json) -> str:
    low, high = interval(facts["solved"], facts["of"])
    share = facts["solved"] / facts["of"] if facts["of"] else 0.0
    return f"{facts['solved']} of {facts['of']} solved, {share:.2f} [{low:.2f}, {high:.2f}]"


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items()))
