"""From one machine to a million users: models of the measured parts, validated before they are used.

    python bench/scale.py    check the models, simulate a day, save results and a chart
    python bench/scale.py --people 50000 --engine "SmolLM2-135M, 2 cores"

Constants are from docs/lab/benchmarks.md; user behaviour is assumed and can be changed. The models
(``scale_model.py``) are first checked against what they were not fitted to, most of it measured on a live
server by ``arrivals.py``. Then one replica answers its share of a day, second by second; all turns and
complaints of the day queue for the judge, the trainers and the ledger. Disk, memory and costs are products.

Not modelled: networks, failures, cache misses beyond ``cold_share``, and engines that were not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scale_model import CHUNK, MAX_RUNNING, Engine, Request, Served, quantile, serve, servers_for, waits

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = DOCS / "results" / "arrivals.json"
NEAR = 0.20
#: A first token may also be off by so many seconds: of one that comes after 60 ms, 20 % is nothing.
NEAR_S = 0.02
#: The fewest requests to simulate when looking for a number of replicas.
ENOUGH = 1500


# --- measured ----------------------------------------------------------------------------------

#: The live server that the models are checked against (``arrivals.py``).
LIVE: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
TWO_CORES = "SmolLM2-135M, 2 cores"


def two_cores() -> Engine:
    """As measured on the live server, all blocks' mean; else from an earlier machine's three figures."""
    if not LIVE:
        return Engine.through(168, 8, 551, (2000, 2.25), max_running=16)
    costs = [block[when]["costs"] for block in LIVE["blocks"] for when in ("before", "after")]
    means = {name: fmean(each[name] for each in costs) for name in costs[0]}
    return Engine(**means, max_running=MAX_RUNNING)


#: A GPU reads longer pieces of prompts.
GPU_CHUNK = 8 * CHUNK
#: With adapters, since every user has their own policy: on a GPU eight different ones among 64 streams. The
#: small model's there were measured before its kernels of today.
ENGINES = {
    TWO_CORES: two_cores(),
    "SmolLM2-135M, H200": Engine.through(286, 64, 8_500, (35_900, 1.0), max_running=64, chunk=GPU_CHUNK),
    "Qwen3-4B, H200": Engine.through(255, 64, 8_010, (4000, 0.058), max_running=64, chunk=GPU_CHUNK),
}
#: Without adapters, and before the kernels of today, with which eight streams were not measured alike.
BARE = {
    "SmolLM2-135M, H200": Engine.through(534, 64, 11_500, (35_900, 1.0), max_running=64, chunk=GPU_CHUNK),
    "Qwen3-4B, H200": Engine.through(221, 64, 4_800, (24_700, 1.0), max_running=64, chunk=GPU_CHUNK),
}
#: Tokens/s with eight streams, which the models above were not fitted to.
DECODE_8 = {"SmolLM2-135M, H200": 3_230, "Qwen3-4B, H200": 1_500}
#: Seconds at 100,000 turns: one client's append, the client's CPU per turn, eight clients' append per turn.
LEDGERS = {"SQLite": (2.47e-3, 1.35e-3, 1.39e-3), "PostgreSQL": (3.82e-3, 1.65e-3, 2.22e-3)}
KB_A_TURN = {"SQLite": 8.6, "PostgreSQL": 9.3}
#: CPU seconds of a turn with three votes, all that the server and the learn process use for it.
JUDGED_S = LIVE["judging"]["constant_cpu_s"] if LIVE else 0.6
#: Real tokens/s of a training step: measured on two cores, and from 343 TFLOP/s at 4 x 4.02e9 a token.
TRAINED = {
    TWO_CORES: LIVE["training"]["tokens_per_s"] if LIVE else 207.0,
    "Qwen3-4B, H200": 343e12 / (4 * 4.02e9),
}
#: A user's adapter (rank 16): on disk in fp16, and in GPU memory in bf16 (the large one from its shape).
ADAPTER_MB = {"SmolLM2-135M": (9.8, 9.8), "Qwen3-4B": (66.1, 66.1)}
#: Weights and KV caches (64 streams of 2,000 tokens), out of the GPU's 139 GiB.
TAKEN_GB = {"SmolLM2-135M": 0.3 + 64 * 2000 * 46e-6, "Qwen3-4B": 8.0 + 64 * 2000 * 147e-6}
GPU_GB = 149.0


# --- assumed -----------------------------------------------------------------------------------


#: Dollars an hour, for an idea of the cost; put in your own.
CORE_HOUR, GPU_HOUR = 0.04, 4.0


@dataclass(frozen=True)
class People:
    number: int = 1_000_000
    active_share: float = 0.3
    """Share of users active on a given day."""
    turns: int = 12
    """Per active user and day."""
    new_tokens: int = 150
    """Prompt tokens beyond the cached ones."""
    cold_share: float = 0.15
    """Share of requests with no cached prompt."""
    prompt_tokens: int = 1500
    """Of a whole prompt, cached or not."""
    reply_tokens: int = 150
    complaints: float = 0.5
    """Per active user and day; each leads to a step of ``step_tokens``."""
    step_tokens: int = 12_000
    judged_share: float = 0.7
    """Share of turns that the model votes on; the others are decided by rules or have no reaction."""
    busiest: float = 1.9
    """The busiest hour's load relative to the mean hour's."""

    @property
    def turns_a_day(self) -> float:
        return self.number * self.active_share * self.turns

    def rate(self, hour: int) -> float:
        """Turns/s of all users in that hour of the day; the hours add up to the day's turns."""
        return self.turns_a_day / 86_400 * (1 + (self.busiest - 1) * math.cos((hour - 20) / 12 * math.pi))


# --- arrivals ----------------------------------------------------------------------------------


def requests(people: People, times: list[float], seed: int) -> list[Request]:
    chance = random.Random(f"prompts {seed}")  # not the numbers that the times were drawn with
    prompts = (
        people.prompt_tokens if chance.random() < people.cold_share else people.new_tokens for _ in times
    )
    return [
        Request(at, prompt, people.reply_tokens, people.prompt_tokens - prompt)
        for at, prompt in zip(times, prompts, strict=True)
    ]


def steady(rate: float, seconds: float, seed: int, begins: float = 0.0) -> list[float]:
    """Times at random, at a constant rate."""
    chance, now, found = random.Random(seed), begins, list[float]()
    while rate > 0 and (now := now + chance.expovariate(rate)) < begins + seconds:
        found.append(now)
    return found


def over_a_day(people: People, share: float) -> list[float]:
    """Times of a share of all turns, over 24 hours with a rate of their own."""
    return [
        at for hour in range(24) for at in steady(share * people.rate(hour), 3600, hour, begins=3600.0 * hour)
    ]


# --- the models against measurements -----------------------------------------------------------


def checks() -> list[dict[str, Any]]:
    """For each metric that no model was fitted to: the model's value and the measured one."""
    found = [*_of_the_server(LIVE)] if LIVE else []
    for name, measured in DECODE_8.items():
        model = serve(BARE[name], [Request(0.0, 1, 400) for _ in range(8)]).tokens_per_s
        found.append(_check(f"{name}: decode, 8 streams (tok/s)", model, measured))
    for name, (one, cpu, measured) in LEDGERS.items():
        group = (one - cpu + 8 * cpu) / 8  # one commit for all waiting clients
        found.append(_check(f"{name}: append, 8 clients (ms)", 1e3 * group, 1e3 * measured))
    return found


def _check(what: str, model: float, measured: float) -> dict[str, Any]:
    return {"what": what, "model": model, "measured": measured, "off": model / measured - 1}


def _of_the_server(saved: dict[str, Any]) -> list[dict[str, Any]]:
    """The model replays the very requests that the live server got, with their arrivals and lengths.

    It is fitted to what was measured alone before and after each block of them. Of several rounds, the median
    counts: a virtual machine stutters now and then.
    """
    found = list[dict[str, Any]]()
    for name, blocks in _by_name(saved).items():
        rounds = [_of_block(f"2 cores, {name}", engine_of(block), block) for block in blocks]
        found += [median_round(checks) for checks in zip(*rounds, strict=True)]
    if "judging" in saved:
        judged = saved["judging"]
        pair = judged["constant_cpu_s"], judged["check_cpu_s"]
        found.append(_check("2 cores: judging a turn (CPU s)", *pair))
    if "training" in saved:
        alone = saved["learning_constants"]["tokens_per_s"]
        found.append(_check("2 cores: a step (tok/s)", alone, saved["training"]["tokens_per_s"]))
    return found


def _by_name(saved: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Every kind of block is measured several times."""
    found: dict[str, list[dict[str, Any]]] = {}
    for block in saved["blocks"]:
        found.setdefault(block["name"], []).append(block)
    return found


def median_round(checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """With what it was in each round."""
    ordered = sorted(checks, key=lambda check: float(check["off"]))
    return {**ordered[len(ordered) // 2], "rounds": [check["off"] for check in checks]}


def is_far(check: dict[str, Any]) -> bool:
    near_s = NEAR_S if "first token" in check["what"] else 0.0
    return abs(check["off"]) > NEAR and abs(check["model"] - check["measured"]) > near_s


def _of_block(name: str, engine: Engine, block: dict[str, Any]) -> list[dict[str, Any]]:
    model, measured = replay(engine, block["requests"])
    if name.endswith("streams"):
        return [_check(f"{name}: decode (tok/s)", model.pace, measured.pace)]
    found = [
        _check(f"{name}: tok/s", model.tokens_per_s, measured.tokens_per_s),
        _check(f"{name}: mean time of a reply (s)", model.mean_s, measured.mean_s),
    ]
    for share in (0.5, 0.95):
        pair = (part.first_token_s(share) for part in (model, measured))
        found.append(_check(f"{name}: first token, p{100 * share:.0f} (s)", *pair))
    return found


def rules_alone(saved: dict[str, Any]) -> list[dict[str, Any]]:
    """The same with costs fitted to the block's own steps: how far the scheduler's rules are off, whatever
    the machine's speed did meanwhile. Not a check of what the model is used for.
    """
    found = list[dict[str, Any]]()
    for name, blocks in _by_name(saved).items():
        rounds = [_of_block(f"2 cores, own steps, {name}", _own_engine(block), block) for block in blocks]
        found += [median_round(checks) for checks in zip(*rounds, strict=True)]
    return found


def _own_engine(block: dict[str, Any]) -> Engine:
    return Engine(**block["own_costs"], outside_s=engine_of(block).outside_s, max_running=MAX_RUNNING)


def engine_of(block: dict[str, Any]) -> Engine:
    """From the constants before and after the block: the machine's speed drifts."""
    before, after = block["before"]["costs"], block["after"]["costs"]
    return Engine(**{name: (before[name] + after[name]) / 2 for name in before}, max_running=MAX_RUNNING)


def replay(engine: Engine, rows: list[dict[str, float]]) -> tuple[Served, Served]:
    """What the model makes of the requests, and what was measured."""
    asked = [Request(row["at"], int(row["prompt"]), int(row["reply"])) for row in rows]
    real = [Request(**row) for row in rows]  # type: ignore[arg-type]
    return serve(engine, sorted(asked, key=lambda request: request.at)), Served(real)


# --- a day -------------------------------------------------------------------------------------


def replicas_for(engine: Engine, people: People, wait_s: float) -> int:
    """The fewest replicas with which 95 % of first tokens are in time in the busiest hour.

    In time means within ``wait_s`` of when an otherwise idle engine could have read a whole prompt.
    """
    first_token_s = wait_s + engine.read_alone_s(people.prompt_tokens)
    rate = max(people.rate(hour) for hour in range(24))
    low, high = 0, 1
    while not _is_quick(engine, people, rate / high, first_token_s):
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        if _is_quick(engine, people, rate / middle, first_token_s):
            high = middle
        else:
            low = middle
    return high


def _is_quick(engine: Engine, people: People, rate: float, first_token_s: float) -> bool:
    arrivals = requests(people, steady(rate, max(120.0, ENOUGH / rate), seed=0), seed=0)
    served = serve(engine, arrivals, until=2 * arrivals[-1].at + 60)
    return len(served.requests) == len(arrivals) and served.first_token_s(0.95) <= first_token_s


def learning(people: People, judged_in_s: float = 60.0, learned_in_s: float = 300.0) -> dict[str, Any]:
    """Judges, trainers and ledger: all of a day's jobs in queues."""
    turns = over_a_day(people, 1.0)
    judged = over_a_day(people, people.judged_share)
    steps = over_a_day(people, people.complaints / people.turns)
    append_s = LEDGERS["PostgreSQL"][2]
    late = waits(turns, 1, append_s)
    return {
        "turns_a_day": len(turns),
        "steps_a_day": len(steps),
        "judge_cores": servers_for(judged, JUDGED_S, judged_in_s),
        "trainers": {
            name: servers_for(steps, people.step_tokens / rate, learned_in_s)
            for name, rate in TRAINED.items()
        },
        "ledger_wait_ms": {share: 1e3 * quantile(late, share) for share in (0.5, 0.95, 0.999)},
        "ledger_share_of_one_writer": max(people.rate(hour) for hour in range(24)) * append_s,
        "ledger_gb_a_day": len(turns) * KB_A_TURN["PostgreSQL"] / 1e6,
    }


def cost(found: dict[str, Any], learned: dict[str, Any]) -> dict[str, float]:
    """Dollars a person and month of 730 hours, all machines running day and night."""
    name = found["engine"]
    hour = GPU_HOUR if "H200" in name else 2 * CORE_HOUR
    each = {"serving": found["replicas"] * hour, "judging": learned["judge_cores"] * CORE_HOUR}
    if name in learned["trainers"]:
        each["training"] = learned["trainers"][name] * hour
    return {part: 730 * value / found["people"] for part, value in each.items()}


def day(name: str, people: People, wait_s: float) -> dict[str, Any]:
    """One replica's share of a day."""
    engine = ENGINES[name]
    number = replicas_for(engine, people, wait_s)
    served = serve(engine, requests(people, over_a_day(people, 1 / number), seed=1))
    hours = [[r for r in served.requests if 3600 * hour <= r.at < 3600 * (hour + 1)] for hour in range(24)]
    model = name.partition(",")[0]
    on_disk, in_memory = ADAPTER_MB[model]
    found: dict[str, Any] = {
        "engine": name,
        "people": people.number,
        "replicas": number,
        "people_per_replica": people.number / number,
        "requests_of_a_replica": len(served.requests),
        "first_token_p95_s": served.first_token_s(0.95),
        "hours": [
            {"hour": n, "first_token_p95_s": Served(each).first_token_s(0.95)} for n, each in enumerate(hours)
        ],
        "adapters_tb": people.number * on_disk / 1e6,
    }
    if "H200" in name:
        found["adapters_per_gpu"] = int(1e3 * (GPU_GB - TAKEN_GB[model]) / in_memory)
    return found


# --- shown -------------------------------------------------------------------------------------


def picture(days: list[dict[str, Any]]) -> str:
    from plot import _svg, _text

    left, top, width, height = 70, 60, 640, 200
    parts = [_text(16, 30, "A day of a million people: 95 % of first tokens within …", size=15, weight="600")]
    for seconds in (0.0, 1.0, 2.0, 3.0):
        y = top + height * (1 - seconds / 3)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7eb"/>')
        parts.append(_text(left - 10, y + 4, f"{seconds:g} s", anchor="end", size=12))
    for hour in range(0, 24, 4):
        parts.append(
            _text(left + width * hour / 23, top + height + 22, f"{hour}:00", anchor="middle", size=12)
        )
    for n, (found, colour) in enumerate(zip(days, ("#e4572e", "#6b8cae", "#9aa5b1"), strict=False)):
        points = [
            (left + width * each["hour"] / 23, top + height * (1 - min(3.1, each["first_token_p95_s"]) / 3))
            for each in found["hours"]
        ]
        line = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        each = f"{found['people_per_replica']:,.0f} people each"
        label = f"{found['engine']}: {found['replicas']:,} replicas, {each}"
        parts.append(
            f'<rect x="16" y="{top + height + 40 + 22 * n}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(_text(36, top + height + 51 + 22 * n, label, size=12))
    y = top + height + 66 + 22 * len(days)
    parts.append(
        _text(
            16,
            y,
            "simulated from constants measured on one machine; see docs/scale.md",
            size=11,
            colour="#66707a",
        )
    )
    return _svg(parts, y + 20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=People.number)
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--wait-s", type=float, default=0.5, help="for a first token, beyond reading it")
    options = parser.parse_args()
    checked = checks()
    for check in [*checked, *(rules_alone(LIVE) if LIVE else [])]:
        both = f"model {check['model']:>9.2f}  measured {check['measured']:>9.2f}"
        rounds = " ".join(f"{off:+.0%}" for off in check.get("rounds", ()))
        print(f"{check['what']:<58} {both}  {check['off']:+.0%}  {rounds}")
    if far := [check["what"] for check in checked if is_far(check)]:
        raise SystemExit(f"not within {NEAR:.0%}, so nothing is extrapolated: {'; '.join(far)}")
    people = People(number=options.people)
    days = [day(name, people, options.wait_s) for name in options.engine or ENGINES]
    learned = learning(people)
    for found in days:
        found["dollars_a_person_and_month"] = cost(found, learned)
    for found in [learned, *days]:
        print(json.dumps({name: value for name, value in found.items() if name != "hours"}, indent=1))
    if options.people == People.number and not options.engine:
        saved = {"checks": checked, "learning": learned, "days": days}
        (DOCS / "results" / "scale.json").write_text(json.dumps(saved, indent=1) + "\n")
        (DOCS / "img" / "scale.svg").write_text(picture(days))


if __name__ == "__main__":
    main()
