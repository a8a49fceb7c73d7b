"""From one machine to a million users: queueing models of the measured parts, validated before they are used.

    python bench/scale.py    check the models, simulate a day, save results and a chart
    python bench/scale.py --people 50000 --engine "SmolLM2-135M, 2 cores"

Constants are from docs/lab/benchmarks.md; user behaviour is assumed and can be changed. Serving is simulated
step by step, as the engine runs: one token of each stream and a chunk of one prompt. A day is 24 hours of
different load; for each, one replica is simulated for two minutes or 1,500 requests, whichever is longer.
Judging, training and the ledger are modelled as rates.

Not modelled: networks, failures, cache misses beyond ``cold_share``, and engines that were not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
NEAR = 0.20
#: The fewest requests to simulate: fewer say little about the slowest 5 %.
ENOUGH = 1500


# --- measured ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A step takes ``fixed_s`` plus ``row_s`` per stream; prompts are read at ``prefill`` tokens/s."""

    fixed_s: float
    row_s: float
    prefill: float
    max_running: int
    chunk: int = 256

    @classmethod
    def through(cls, one: float, streams: int, many: float, prefill: float) -> Engine:
        """From tokens/s with one stream and with ``streams`` streams."""
        row_s = (streams / many - 1 / one) / (streams - 1)
        return cls(1 / one - row_s, row_s, prefill, max(8, streams))

    def step_s(self, rows: int, prompt: int) -> float:
        return (self.fixed_s + self.row_s * rows if rows else 0.0) + prompt / self.prefill


#: With an adapter on every stream where that was measured, since every user has their own policy.
ENGINES = {
    "SmolLM2-135M, 2 cores": Engine.through(168, 8, 551, 2000 / 2.25),
    "SmolLM2-135M, H200": Engine.through(286, 64, 8_500, 35_900),
    "Qwen3-4B, H200": Engine.through(145, 64, 4_400, 24_700),
}
#: Without adapters.
BARE = {
    "SmolLM2-135M, H200": Engine.through(534, 64, 11_500, 35_900),
    "Qwen3-4B, H200": Engine.through(221, 64, 4_800, 24_700),
}
#: Tokens/s with eight streams, which the models above were not fitted to.
DECODE_8 = {"SmolLM2-135M, H200": 3_230, "Qwen3-4B, H200": 1_500}
#: Seconds at 100,000 turns: one client's append, the client's CPU per turn, eight clients' append per turn.
LEDGERS = {"SQLite": (2.47e-3, 1.35e-3, 1.39e-3), "PostgreSQL": (3.82e-3, 1.65e-3, 2.22e-3)}
KB_A_TURN = {"SQLite": 8.6, "PostgreSQL": 9.3}
VOTE_S, VOTES = 0.208, 3
#: Real tokens/s of a training step on two cores.
TRAINED = 207.0
#: A user's adapter (rank 16): on disk in fp16, and in GPU memory in bf16 (the large one from its shape).
ADAPTER_MB = {"SmolLM2-135M": (9.8, 9.8), "Qwen3-4B": (66.1, 66.1)}
#: Weights and KV caches (64 streams of 2,000 tokens), out of the GPU's 139 GiB.
TAKEN_GB = {"SmolLM2-135M": 0.3 + 64 * 2000 * 46e-6, "Qwen3-4B": 8.0 + 64 * 2000 * 147e-6}
GPU_GB = 149.0


# --- assumed -----------------------------------------------------------------------------------


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
        """Turns/s of all users in that hour; the hours add up to the day's turns."""
        return self.turns_a_day / 86_400 * (1 + (self.busiest - 1) * math.cos((hour - 20) / 12 * math.pi))


# --- serving, step by step ---------------------------------------------------------------------


@dataclass
class Request:
    at: float
    prompt: int
    reply: int
    first: float = 0.0
    end: float = 0.0


@dataclass
class Served:
    requests: list[Request] = field(default_factory=list)
    seconds: float = 0.0

    def first_token_s(self, share: float) -> float:
        waits = sorted(request.first - request.at for request in self.requests)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0

    @property
    def mean_s(self) -> float:
        return statistics.fmean(r.end - r.at for r in self.requests) if self.requests else 0.0

    @property
    def tokens_per_s(self) -> float:
        return sum(request.reply for request in self.requests) / self.seconds


def serve(engine: Engine, arrivals: list[Request], until: float = math.inf) -> Served:
    """Simulate requests on an engine; returns those finished by ``until``."""
    coming, waiting = deque(arrivals), deque[tuple[Request, int]]()
    running: list[list[Any]] = []  # request, tokens left
    now, done = 0.0, Served()
    while (coming or waiting or running) and now < until:
        while coming and coming[0].at <= now:
            waiting.append((coming[0], coming.popleft().prompt))
        if not waiting and not running:
            now = coming[0].at
            continue
        piece, rows = 0, len(running)
        if waiting and rows < engine.max_running:
            request, left = waiting.popleft()
            piece = min(left, engine.chunk if rows else 8 * engine.chunk)
        now += engine.step_s(rows, piece)
        for each in running:
            each[1] -= 1
        for each in [each for each in running if each[1] <= 0]:
            each[0].end = now
            done.requests.append(each[0])
        running = [each for each in running if each[1] > 0]
        if piece and left > piece:
            waiting.appendleft((request, left - piece))
        elif piece:
            request.first = now
            running.append([request, request.reply - 1])
    done.seconds = now
    return done


def poisson(people: People, rate: float, seconds: float, seed: int) -> list[Request]:
    chance, now, found = random.Random(seed), 0.0, list[Request]()
    while rate > 0 and (now := now + chance.expovariate(rate)) < seconds:
        cold = chance.random() < people.cold_share
        found.append(Request(now, people.prompt_tokens if cold else people.new_tokens, people.reply_tokens))
    return found


# --- the models against measurements -----------------------------------------------------------


def checks() -> list[dict[str, Any]]:
    """For each metric that no model was fitted to: the model's value and the measured one."""
    found = []
    for name, measured in DECODE_8.items():
        played = serve(BARE[name], [Request(0.0, 1, 400) for _ in range(8)])
        found.append(
            {"what": f"{name}: decode, 8 streams (tok/s)", "model": played.tokens_per_s, "measured": measured}
        )
    for name, (one, cpu, measured) in LEDGERS.items():
        group = (one - cpu + 8 * cpu) / 8  # one commit for all waiting clients
        found.append(
            {"what": f"{name}: append, 8 clients (ms)", "model": 1e3 * group, "measured": 1e3 * measured}
        )
    for check in found:
        check["off"] = check["model"] / check["measured"] - 1
    return found


# --- a day -------------------------------------------------------------------------------------


def replicas_for(engine: Engine, people: People, wait_s: float, played_s: float = 120.0) -> int:
    """The fewest replicas with which 95 % of first tokens are in time in the busiest hour.

    In time means within ``wait_s`` of when an otherwise idle engine could have read a whole prompt.
    """
    first_token_s = wait_s + people.prompt_tokens / engine.prefill
    rate = max(people.rate(hour) for hour in range(24))
    low, high = 1, 1
    while not _is_quick(engine, people, rate / high, first_token_s, played_s):
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        if _is_quick(engine, people, rate / middle, first_token_s, played_s):
            high = middle
        else:
            low = middle
    return high


def _is_quick(engine: Engine, people: People, rate: float, first_token_s: float, played_s: float) -> bool:
    arrivals = poisson(people, rate, max(played_s, ENOUGH / rate), seed=0)
    played = serve(engine, arrivals, until=2 * arrivals[-1].at + 60)
    return len(played.requests) == len(arrivals) and played.first_token_s(0.95) <= first_token_s


def day(name: str, people: People, wait_s: float) -> dict[str, Any]:
    engine = ENGINES[name]
    number = replicas_for(engine, people, wait_s)
    hours = []
    for hour in range(24):
        rate = people.rate(hour) / number
        played = serve(engine, poisson(people, rate, max(120.0, ENOUGH / rate), seed=hour))
        hours.append(
            {"hour": hour, "turns_per_s": people.rate(hour), "first_token_p95_s": played.first_token_s(0.95)}
        )
    turns, busiest = people.turns_a_day, max(people.rate(hour) for hour in range(24))
    votes_s = turns * people.judged_share * VOTES * VOTE_S
    steps = people.number * people.active_share * people.complaints
    append_s = LEDGERS["PostgreSQL"][2]
    model = name.partition(",")[0]
    found = {
        "engine": name,
        "people": people.number,
        "turns_a_day": turns,
        "busiest_turns_per_s": busiest,
        "replicas": number,
        "people_per_replica": people.number / number,
        "judge_cores": votes_s / 86_400 * people.busiest,
        "ledger_share_of_one_writer": busiest * append_s,
        "ledgers": math.ceil(busiest * append_s / 0.7),
        "ledger_gb_a_day": turns * KB_A_TURN["PostgreSQL"] / 1e6,
        "ledger_tb_a_year": turns * KB_A_TURN["PostgreSQL"] * 365 / 1e9,
        "steps_a_day": steps,
        "hours": hours,
    }
    on_disk, in_memory = ADAPTER_MB[model]
    found["adapters_tb"] = people.number * on_disk / 1e6
    if "H200" in name:
        found["adapters_per_gpu"] = int(1e3 * (GPU_GB - TAKEN_GB[model]) / in_memory)
    if model == "SmolLM2-135M":  # the only model whose training steps were measured
        found["trainers_of_2_cores"] = steps * people.step_tokens / TRAINED / 86_400 * people.busiest
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
    for check in checked:
        both = f"model {check['model']:>9.2f}  measured {check['measured']:>9.2f}"
        print(f"{check['what']:<56} {both}  {check['off']:+.0%}")
    if far := [check["what"] for check in checked if abs(check["off"]) > NEAR]:
        raise SystemExit(f"not within {NEAR:.0%}, so nothing is extrapolated: {'; '.join(far)}")
    people = People(number=options.people)
    days = [day(name, people, options.wait_s) for name in options.engine or ENGINES]
    for found in days:
        print(json.dumps({name: value for name, value in found.items() if name != "hours"}, indent=1))
    if options.people == People.number and not options.engine:
        saved = {"checks": checked, "days": days}
        (DOCS / "results" / "scale.json").write_text(json.dumps(saved, indent=1) + "\n")
        (DOCS / "img" / "scale.svg").write_text(picture(days))


if __name__ == "__main__":
    main()
