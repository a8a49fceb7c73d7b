"""A live server under mixed arrivals, judging and training: ``bench/scale.py`` is checked against it.

    taskset -c 0,1 python bench/arrivals.py [--seconds 60] [--save docs/results/arrivals.json]
    python bench/arrivals.py --server-cores 0,1         with clients on the machine's other cores

*Constants*, which a model may be fitted to: the steps of one, four and eight streams, also after long
prompts, and of cold prompts of four lengths, the first half of the turns that are judged, and a training step
alone. *Checks*, which it may not: four and twelve streams, requests that arrive at random at three rates, the
other half of the turns, and a wish that is learned while the server runs. Every request's arrival, tokens and
times are saved, so that the model replays the same ones, and every step of the engine (``steps.py``).
Everything but the step alone goes over HTTP.

Arrivals: 85 % of prompts have about 150 tokens, the others 1,500, none of them cached; replies have up to 100
tokens. The rates are shares of what the constants allow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from scale_model import MAX_RUNNING, Engine
from step_costs import fit, read_steps

from openclaw_rl.evals.personalize.talk import System
from openclaw_rl.testing import ServerProcess, wait_until

STREAMS, SHORT, LONG, LONG_SHARE, REPLY = (4, 12), 150, 1500, 0.15, 100
PROMPTS = (70, SHORT, 500, LONG)
SHARES = (0.4, 0.7, 1.2)
WORDS = [
    "river",
    "stone",
    "lamp",
    "window",
    "garden",
    "harbour",
    "train",
    "letter",
    "music",
    "winter",
    "coffee",
    "bridge",
    "paper",
]
PARTS = ("blocks", "learning_constants", "judging", "training")
Row = dict[str, float]


def words(chance: random.Random, tokens: int) -> str:
    """Text of about so many tokens, with no prefix in common with other such text."""
    return (
        " ".join(f"{chance.choice(WORDS)}" for _ in range(max(1, tokens - 60)))
        + ". Tell me a long story of it."
    )


async def stream(http: httpx.AsyncClient, text: str, max_tokens: int, began: float) -> Row:
    """One request; times are seconds since ``began``."""
    body = {
        "model": "default", "stream": True, "max_tokens": max_tokens, "temperature": 1.0,
        "messages": [{"role": "user", "content": text}], "stream_options": {"include_usage": True},
    }  # fmt: skip
    row: Row = {"at": time.perf_counter() - began}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                row |= {
                    "prompt": chunk["usage"]["prompt_tokens"],
                    "reply": chunk["usage"]["completion_tokens"],
                }
            if chunk["choices"]:
                row["end"] = time.perf_counter() - began
                if chunk["choices"][0]["delta"].get("content"):
                    row.setdefault("first", row["end"])
    row.setdefault("first", row["end"])
    return row


async def together(
    http: httpx.AsyncClient, number: int, chance: random.Random, tokens: int = 70
) -> list[Row]:
    began = time.perf_counter()
    texts = [f"{words(chance, tokens)}" for _ in range(number)]
    return list(await asyncio.gather(*(stream(http, text, 128, began) for text in texts)))


async def on_its_own(http: httpx.AsyncClient, text: str) -> Row:
    """After what follows the reply before. More than one token, since the last waits for the ledger."""
    await asyncio.sleep(0.2)
    return await stream(http, text, 4, time.perf_counter())


def pace(rows: Sequence[Row]) -> float:
    """Tokens/s of all streams: so many times the median stream's, of those that arrived in pieces."""
    paces = [(row["reply"] - 1) / (row["end"] - row["first"]) for row in rows if row["end"] > row["first"]]
    return len(rows) * statistics.median(paces) if paces else 0.0


async def at_random(http: httpx.AsyncClient, rate: float, seconds: float, chance: random.Random) -> list[Row]:
    began, due, tasks = time.perf_counter(), 0.0, []
    while (due := due + chance.expovariate(rate)) < seconds:
        text = words(chance, LONG if chance.random() < LONG_SHARE else SHORT)
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.create_task(stream(http, text, REPLY, began)))
    return list(await asyncio.gather(*tasks))


async def alone(http: httpx.AsyncClient, chance: random.Random, steps: Path) -> dict[str, Any]:
    """What a model of the engine is fitted to."""
    found: dict[str, Any] = {"began": time.time(), "streams": [], "prompts": []}
    for number, tokens, times in ((1, 70, 2), (8, 70, 1), (1, LONG, 1), (4, 500, 1)):
        blocks = [await together(http, number, chance, tokens) for _ in range(times)]
        context = statistics.fmean(row["prompt"] + row["reply"] / 2 for rows in blocks for row in rows)
        found["streams"].append([number, context, statistics.median(map(pace, blocks))])
    for tokens in PROMPTS:
        rows = [await on_its_own(http, words(chance, tokens)) for _ in range(3)]
        seconds = statistics.median(row["first"] - row["at"] for row in rows)
        found["prompts"].append([statistics.median(row["prompt"] for row in rows), seconds])
    found["ended"] = time.time()
    found["costs"] = costs_of(found, steps)
    print(found, flush=True)
    return found


def costs_of(found: dict[str, Any], steps: Path) -> Row:
    """A step's costs, and what a request waits for outside the engine: HTTP, rendering, sending."""
    costs = fit(read_steps(steps, found["began"], found["ended"]))
    engine = Engine(**costs, max_running=MAX_RUNNING)
    outside = statistics.median(seconds - engine.read_alone_s(int(n)) for n, seconds in found["prompts"])
    return {**costs, "outside_s": max(0.0, outside)}


async def serving(
    server: ServerProcess, seconds: float, rounds: int, steps: Path, keep: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Blocks of requests, each between two measurements of the engine alone: a machine's speed drifts."""
    chance = random.Random(0)
    headers = {"authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=600, limits=httpx.Limits()
    ) as http:
        for _ in range(6):  # until the engine has chosen its threads
            await together(http, 8, chance)
        before = await alone(http, chance, steps)
        read_s = dict(zip(PROMPTS, (each for _, each in before["prompts"]), strict=True))
        reply_s = REPLY / before["streams"][1][-1]
        request_s = LONG_SHARE * read_s[LONG] + (1 - LONG_SHARE) * read_s[SHORT] + reply_s
        blocks = []
        kinds = [*((number, 0.0) for number in STREAMS), *((0, share) for share in SHARES)]
        for number, share in kinds * rounds:
            rate, began = share / request_s, time.time()
            name = f"{number} streams" if number else f"load {share:g}"
            rows = await (
                together(http, number, chance) if number else at_random(http, rate, seconds, chance)
            )
            ended, after = time.time(), await alone(http, chance, steps)
            own = fit(read_steps(steps, began, ended))
            block = {
                "name": name,
                "rate": rate,
                "before": before,
                "after": after,
                "requests": rows,
                "own_costs": own,
            }
            blocks.append({**block, "began": began, "ended": ended})
            keep(blocks)
            print(f"{name} ({rate:.2f} requests/s): {len(rows)} answered", flush=True)
            before = after
    return blocks


# --- judging and training ------------------------------------------------------------------------


def cpu_s(server: ServerProcess) -> float:
    """Of the server and its learn process."""
    family = [root := psutil.Process(server.pid), *root.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in family)


def judging(home: Path, number: int) -> Row:
    """CPU seconds a turn that has to be voted on, in a server that has nothing else to do."""
    with (
        ServerProcess(home, "--no-learn") as server,
        closing(System(server.url, server.key)) as system,
    ):
        chance = random.Random(1)
        for n in range(number):
            said: list[dict[str, Any]] = [{"role": "user", "content": words(chance, 70)}]
            reply = system.ask(said, n, sampling={"max_tokens": 60})
            said += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": words(chance, 75)},
            ]
            system.ask(said, n, sampling={"max_tokens": 1})
    with (
        ServerProcess(home, "--no-train") as server,
        closing(System(server.url, server.key)) as system,
    ):
        left = lambda: int(system.get("/v1/status")["queues"]["judge"] or 0)  # noqa: E731
        # The first cases also read the judge's examples, once.
        wait_until(lambda: 0 < left() <= number - 4, "judging began", 300)
        found: Row = {}
        for half, until in (("constant", left() // 2), ("check", 0)):
            before, used, began = left(), cpu_s(server), time.perf_counter()
            wait_until(lambda until=until: left() <= until, "half of it is judged", 600)  # type: ignore[misc]
            turns = before - left()
            found[f"{half}_turns"] = turns
            found[f"{half}_cpu_s"] = (cpu_s(server) - used) / turns
            found[f"{half}_s"] = (time.perf_counter() - began) / turns
        return found


def training(home: Path) -> Row:
    """Real tokens/s of the step that a wish leads to, while the server runs."""
    with ServerProcess(home) as server, closing(System(server.url, server.key)) as system:
        said = [{"role": "user", "content": "Tell me something about rivers."}]
        reply = system.ask(said, 0, sampling={"max_tokens": 60})
        more = [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": "Please answer in one sentence."},
        ]
        system.ask([*said, *more], 1, sampling={"max_tokens": 8})
        made = lambda: [row["metrics"] for row in _versions(system) if (row["metrics"] or {}).get("total_s")]  # noqa: E731
        metrics = wait_until(made, "a step was made", 300)[-1]
    return {"tokens_per_s": metrics["num_tokens"] / metrics["total_s"], "tokens": metrics["num_tokens"]}


def _versions(system: System) -> list[dict[str, Any]]:
    return sorted(system.get("/v1/policies")["data"], key=lambda row: row["version"])


def run(script: str, *flags: str) -> str:
    command = [sys.executable, str(Path(__file__).with_name(script)), *flags]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def learning_constants() -> Row:
    """A step's real tokens/s, by ``bench/train.py``."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "train.json"
        run("train.py", "--runs", "1", "--only", "ours", "--threads", str(cores()), "--save", str(saved))
        step = json.loads(saved.read_text())
    return {"tokens_per_s": step["medians"]["ours"]["tokens_per_s"]}


def cores() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> str:
    import torch

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = cpu[1] if cpu else platform.machine()
    return f"{name}, {cores()} cores, torch {torch.__version__}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30, help="of arrivals at each rate, in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=48, help="to be judged")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--server-cores", default="", help="of the server: 0,1; the clients use the others")
    parser.add_argument("--only", choices=PARTS, action="append", help="not all parts")
    options = parser.parse_args()
    saved: dict[str, Any] = {"machine": machine(), "server_cores": options.server_cores}

    def keep(name: str, found: Any) -> None:
        saved[name] = found
        if options.save:  # so that a partial result is kept
            options.save.write_text(json.dumps(saved) + "\n")

    parts: dict[str, Callable[[Path], Any]] = {
        "blocks": lambda folder: _served(folder, options, partial(keep, "blocks")),
        "learning_constants": lambda folder: learning_constants(),
        "judging": lambda folder: judging(folder, options.turns),
        "training": training,
    }
    for name in options.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            keep(name, parts[name](Path(folder) / "home"))
        if name != "blocks":
            print(name, saved[name], flush=True)


def _served(home: Path, options: argparse.Namespace, keep: Callable[[Any], None]) -> list[dict[str, Any]]:
    """The blocks; the engine's steps are saved beside them."""
    cores: str = options.server_cores
    within = ("taskset", "-c", cores) if cores else ()
    found = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    threads = {"OMP_NUM_THREADS": str(len(cores.split(",")))} if cores else {}
    steps = options.save.with_suffix(".steps") if options.save else home.with_name("steps")
    steps.unlink(missing_ok=True)
    environment = {"PYTHONPATH": found, "STEPS_FILE": str(steps.resolve()), **threads}
    flags = ("--no-learn", "--engine", "steps:TracedEngine", "--device", "cpu")
    with ServerProcess(home, *flags, environment=environment, within=within) as server:
        return asyncio.run(serving(server, options.seconds, options.rounds, steps, keep))


if __name__ == "__main__":
    main()
