"""The command ``openclaw-rl eval personalize``: plan the arms, run several at a time, write the report."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from openclaw_rl.evals.personalize import METHODS, report
from openclaw_rl.evals.personalize.arm import (
    MEMORY,
    UNTRAINED,
    PersonalizeArm,
    PersonalizeRules,
    is_over,
    run_arm,
    system_for,
)
from openclaw_rl.evals.personalize.talk import Row, SimulatedUser, System
from openclaw_rl.evals.personalize.users import EndpointVoice, Voice, built_in, load_user, own_words
from openclaw_rl.judge.hints import verbatim_hints
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.types import JudgeCase

TOGETHER = ("short", "list", "simple")
ALONE = ("short", "simple")
#: Flags for a system that several arms share: all of them may measure at the same time.
_ANY_NUMBER = ("--no-learn", "--max-waiting", "10000")


def run(options: argparse.Namespace, home: Path) -> int:
    out = options.out or home / "evals" / ("quick" if options.quick else "personalize")
    out.mkdir(parents=True, exist_ok=True)
    flags = tuple(options.serve_flags.split())
    if options.measure:
        table = measure(options.user or built_in(), options.held_out, flags, out)
        print(table)
        return 0
    arms = plan(options)
    rules = PersonalizeRules(
        limit=options.sessions or (12 if options.quick else 72),
        held_out=12 if options.quick else options.held_out,
        deadline=time.monotonic() + 60 * options.minutes if options.minutes else math.inf,
        probes=options.probes,
        flags=flags,
        voice=_voice(options),
        running=_running(options.url),
    )
    failed = run_all(arms, out, rules, options.parallel or 1)
    report.write(out, home / "evals")
    print((out / "report.md").read_text(encoding="utf-8"))
    print(f"table, plots and raw logs: {out}")
    return 1 if failed else 0


def plan(options: argparse.Namespace) -> list[PersonalizeArm]:
    """All arms; the most informative come first, so that a partial run is useful."""
    if options.url:
        return [PersonalizeArm("running", tuple(options.user or ("short",)), 0, options.then)]
    methods = options.methods.split(",") if options.methods else list(METHODS)
    if options.quick and not options.methods:
        methods = ["hybrid", UNTRAINED, MEMORY]
    if options.user:
        groups: list[tuple[str, ...]] = [tuple(options.user)]
    elif options.quick:
        groups = [("short",)]
    else:
        groups = [TOGETHER, *((user,) for user in ALONE)]
    seeds = range(options.seeds or (1 if options.quick else 5))
    return [
        PersonalizeArm(method, group, seed, options.then)
        for seed in seeds
        for method in methods
        for group in groups
    ]


def run_all(arms: Sequence[PersonalizeArm], out: Path, rules: PersonalizeRules, parallel: int) -> list[str]:
    """Run every arm to its end; returns the names of those that failed, which do not stop the others.

    Each arm that learns has its own system. Those that do not share one, whose engine batches their requests.
    """
    failed: list[str] = []
    still = [arm for arm in arms if not (arm.learns or is_over(arm, out / "arms" / arm.name, rules))]
    with ExitStack() as stack:
        bar = tqdm(total=len(arms) * rules.limit, unit="session", desc="sessions", smoothing=0.05)
        stack.enter_context(bar)
        shared = rules
        if still and not rules.running:
            system = system_for(still, out / "not learning" / "home", rules, _ANY_NUMBER)
            shared = replace(rules, running=stack.enter_context(system))
        lock = threading.Lock()

        def tick(count: int) -> None:
            with lock:
                bar.update(count)

        def one(arm: PersonalizeArm) -> None:
            folder = out / "arms" / arm.name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                run_arm(arm, folder, rules if arm.learns else shared, tick)
            except Exception as error:
                failed.append(arm.name)
                tqdm.write(f"{arm.name}: {type(error).__name__}: {error}", file=sys.stderr)

        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(one, arms))
    return failed


def measure(users: Sequence[str], count: int, flags: Sequence[str], out: Path) -> str:
    """How often the untrained model satisfies each user: as asked, and with the wish stated in the prompt."""
    rows: list[Row] = []
    with ServerProcess(out / "measure" / "home", "--no-learn", *flags) as server:
        key = KeyRing(out / "measure" / "home" / "keys.json").key_of("default") or ""
        with closing(System(server.url, key)) as system:
            for name in tqdm(users, desc="users", unit="user"):
                user = load_user(name)
                person = SimulatedUser(user.name, [user], system, seed=0)
                tasks = list(islice(user.tasks("train", 99), count))
                chance = random.Random(name)
                told = [as_hint(user.complaint(chance)) for _ in tasks]
                plain = person.examine(tasks, seed=1)
                hinted = []
                for task, hint in zip(tasks, told, strict=True):
                    hinted.append(type(task)(task.kind, task.key, f"{task.text}\n\n{hint}", task.answer))
                rows += [{"user": user.name, "told": False, **row} for row in plain]
                rows += [{"user": user.name, "told": True, **row} for row in person.examine(hinted, seed=1)]
    (out / "measure.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = [
        "| user | task | n | liked: as asked → told | strict: as asked → told |",
        "|---|---|---|---|---|",
    ]
    for user, kind in sorted({(row["user"], row["kind"]) for row in rows}):
        cells = []
        for rule in ("liked", "strict"):
            rates = [
                statistics.mean(
                    row["liked"] and (rule == "liked" or row["answered"])
                    for row in rows
                    if (row["user"], row["kind"], row["told"]) == (user, kind, told)
                )
                for told in (False, True)
            ]
            cells.append(f"{rates[0]:.2f} → {rates[1]:.2f}")
        number = sum((row["user"], row["kind"], row["told"]) == (user, kind, False) for row in rows)
        lines.append(f"| {user} | {kind} | {number} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def as_hint(complaint: str) -> str:
    """The hint that the judge would extract from the complaint."""
    said: Row = {"role": "user", "content": complaint}
    case = JudgeCase([{"role": "user", "content": "?"}], {"role": "assistant", "content": "."}, [said])
    return " ".join(verbatim_hints(case)) or complaint


def _voice(options: argparse.Namespace) -> Voice:
    if not options.user_url:
        return own_words
    if not options.user_model:
        raise ValueError("--user-url needs --user-model")
    return EndpointVoice(options.user_url, options.user_model, os.environ.get("OPENCLAW_RL_USER_API_KEY"))


def _running(url: str | None) -> tuple[str, dict[str, str]] | None:
    if not url:
        return None
    key = os.environ.get("OPENCLAW_RL_API_KEY")
    if not key:
        raise ValueError("--url needs the system's key in OPENCLAW_RL_API_KEY (openclaw-rl keys list)")
    return url.rstrip("/").removesuffix("/v1"), {"default": key}
