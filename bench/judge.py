"""The cost of a vote of the embedded judge: CPU seconds of one thread, over the labelled test half.

    python bench/judge.py [--number 3] [--every 4] [--kernel native@avx2]

Each round judges every fourth case by votes alone (no rules), with the constant few-shot prefixes already
cached. ``longest`` is a case whose texts exceed the judge's limit and are truncated. ``guard`` is the slowest
of several hostile texts of 300,000 characters. ``--help`` is the start-up of the command itself.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import time
from typing import Any

from openclaw_rl.evals.judge import evaluate_judge, local_parts
from openclaw_rl.judge import JudgeParts, RuleFirstJudge, create_judge
from openclaw_rl.judge.guard import neutralise
from openclaw_rl.judge.shots import case_of, read_cases
from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.testing import command

HOSTILE = ("<a>", '{"a":', "a ", "word word. ", "[A] ", "=== x ", "\n")


def longest_case() -> dict[str, Any]:
    said = " ".join(f"sentence number {n}." for n in range(2000))
    return {
        **read_cases("test")[0],
        "reply": "Some words of an answer, different each time. " * 3000,
        "next_state": [{"role": "user", "content": said}],
    }


async def measure_votes(cases: list[dict[str, Any]], number: int, kernel: str) -> dict[str, list[float]]:
    """CPU seconds per vote; a new judge each round, since a judge caches its scores."""
    costs: dict[str, list[float]] = {"vote": [], "longest": []}
    async with local_parts(DEFAULT_MODEL, kernel=kernel) as (engine, encode, renderer):
        for _ in range(number):
            judge = create_judge("label", JudgeParts(engine=engine, encode=encode, renderer=renderer))
            assert isinstance(judge, RuleFirstJudge)
            for row in (read_cases("train")[0], read_cases("test")[-1]):  # a user's and a tool's next state
                await judge.votes.evaluate(case_of(row))
            costs["vote"].append((await evaluate_judge(judge.votes, cases, {})).cpu_s_per_vote)
            costs["longest"].append((await evaluate_judge(judge.votes, [longest_case()], {})).cpu_s_per_vote)
    return costs


def measure_guard() -> float:
    slowest = 0.0
    for unit in HOSTILE:
        started = time.process_time()
        neutralise(unit * (300_000 // len(unit)))
        slowest = max(slowest, time.process_time() - started)
    return slowest


def measure_help() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([command(), "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=3, help="rounds [3]")
    parser.add_argument("--every", type=int, default=4, help="judge every so-many-th case [4]")
    parser.add_argument("--kernel", default="auto", help="of the engine, such as native@avx2 [auto]")
    options = parser.parse_args()
    cases = read_cases("test")[:: options.every]
    costs = asyncio.run(measure_votes(cases, options.number, options.kernel))
    costs["guard"] = [measure_guard() for _ in range(options.number)]
    costs["--help"] = [measure_help() for _ in range(options.number)]
    print(f"| what | CPU seconds, median of {options.number} |\n|---|---|")
    for name, values in costs.items():
        print(f"| {name} | {statistics.median(values):.3f} |")


if __name__ == "__main__":
    main()
