"""The dashboard with 100,000 turns: server time for each page, and time until a browser paints it.

    python bench/web.py [--turns 100000] [--home FOLDER]

Seeds a ledger (including verdicts, samples and versions), serves it with a scripted engine, and sends every
request that a page sends. Paint times need Debian's chromium and the `playwright` package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import marks, verdicts
from openclaw_rl.capture.samples import encode_examples, policies, samples, swaps
from openclaw_rl.capture.serve_ledger import Delivery
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system, wait_until
from openclaw_rl.testing.examples import make_example
from openclaw_rl.types import SamplingParams, Token, TurnRecord

TURNS_PER_SESSION, REPLY_TOKENS, BATCH = 8, 24, 2000
NUM_VERSIONS = 300
PAINT_S, SERVER_S = 1.0, 0.3
WORDS = ["river", "bread", "window", "garden", "engine", "letter", "market", "bridge", "island", "copper"]
PAGES = {
    "now": ["/v1/status"],
    "learning": ["/v1/learning", "/v1/policies"],
    "sessions": ["/v1/sessions?limit=30"],
    "search": ["/v1/sessions?limit=30&query=bridge+garden"],
    "search, one hit": ["/v1/sessions?limit=30&query=needle"],
    "older sessions": ["/v1/sessions?limit=30&after=s6000"],
    "session": ["/v1/sessions/s9000?limit=20&text=true"],
    "longest session": ["/v1/sessions/s0?limit=20&text=true"],
    "tokens": ["/v1/turns/t50000/tokens"],
    "policies": ["/v1/policies"],
    "version": ["/v1/policies/150"],
}


def turn(number: int, started: float) -> TurnRecord:
    # One session is very long.
    long = number < 500
    session = "s0" if long else f"s{number // TURNS_PER_SESSION}"
    place = number if long else number % TURNS_PER_SESSION
    said = [WORDS[(number * k) % len(WORDS)] for k in (1, 5, 7)]
    extra = " needle" if number == 777 else ""
    messages: list[dict[str, Any]] = []
    for earlier in range(max(0, place - 6), place):
        messages += [{"role": "user", "content": f"before {earlier} of {session}"},
                     {"role": "assistant", "content": f"reply {earlier}"}]  # fmt: skip
    messages.append({"role": "user", "content": f"Question {number} about {' and '.join(said)}{extra}?"})
    version = number * NUM_VERSIONS // 100_000
    tokens = [
        Token(65 + (number + i) % 26, -0.5, -0.5, (1, 2, 3, 4), (-0.5, -1.5, -2.5, -3.5), version,
              finish_reason="stop" if i == REPLY_TOKENS - 1 else None)
        for i in range(REPLY_TOKENS)
    ]  # fmt: skip
    return TurnRecord(
        id=f"t{number}", session_id=session, user="default" if number % 3 else "ada", dialect="chat",
        kind="main", messages=messages, tools=None, params={"model": "scripted"},
        reply={"role": "assistant", "content": f"An answer about {said[0]}."},
        prompt_ids=[number % 250, *range(40)], tokens=tokens, sampling=SamplingParams(64),
        policy_version=version, finish_reason="stop", created_at=started + number * 10,
        timings={"first_token_s": 0.2, "total_s": 1.0},
    )  # fmt: skip


def seed(system: ServingSystem, number: int) -> None:
    started = time.time() - number * 10
    one = turn(0, started)
    zeros = np.zeros((REPLY_TOKENS, 5), np.float32)
    sample = encode_examples([make_example(one, 1, zeros.astype(np.int32), zeros, zeros + 0.1)], one)
    for start in range(0, number, BATCH):
        turns = [turn(i, started) for i in range(start, min(number, start + BATCH))]
        delivered = [Delivery(one.id, True, one.created_at) for one in turns]
        system.ledgers.serve.append([*turns, *delivered])
        rows = [{"turn_id": t.id, "score": (i % 5 > 1) * 2 - 1, "created_at": t.created_at, "user": t.user,
                 "policy_version": t.policy_version} for i, t in enumerate(turns)]  # fmt: skip
        with database.writing(system.ledgers.learn.db) as connection:
            connection.execute(verdicts.insert(), [
                {"turn_id": r["turn_id"], "score": r["score"], "confidence": 0.9, "source": "votes",
                 "votes": "[1,1,-1]", "hints": "[]", "trainable": True, "reason": "",
                 "judged_at": r["created_at"]}
                for r in rows
            ])  # fmt: skip
            connection.execute(samples.insert(), [
                {**r, "verdict": start + i + 1, "status": "trained", "reason": None, "strength": 1.0,
                 "step": r["policy_version"] + 1, "data": sample}
                for i, r in enumerate(rows)
            ])  # fmt: skip
    names = ("forgetting", "forgetting at once", "degenerate replies", "length", "specificity", "strangeness")
    checks = [{"name": name, "value": 0.1, "bound": 0.6, "passed": True} for name in names]
    metrics = {"loss": 0.2, "grad_norm": 1.0, "total_s": 5.0, "mismatch": 0.01, "num_samples": 4}
    with database.writing(system.ledgers.learn.db) as connection:
        for version in range(1, NUM_VERSIONS + 1):
            at = started + version * number * 10 / NUM_VERSIONS
            connection.execute(policies.insert().values(
                version=version, parent=version - 1,
                status="serving" if version == NUM_VERSIONS else "retired",
                created_at=at, published_at=at, num_samples=4, config_hash="x", metrics=json.dumps(metrics),
                gate=json.dumps({"passed": True, "reason": "", "checks": checks}),
            ))  # fmt: skip
            connection.execute(swaps.insert().values(version=version, at=at, why="passed its checks"))
        known = {"judged": number, "sample:trained": number, "cursor_verdicts": number,
                 "cursor_turns": number, "cursor_events": 0}  # fmt: skip
        connection.execute(marks.insert(), [{"name": name, "value": float(v)} for name, v in known.items()])


@contextmanager
def listening(system: ServingSystem) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(system.app(), host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_until(lambda: server.started, "the server listens")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = server.force_exit = True
    thread.join()


def server_times(url: str, key: str) -> dict[str, float]:
    """Seconds for all of a page's requests, sent one after the other: the slowest of five visits."""
    times: dict[str, float] = {}
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        client.get("/v1/status")
        for name, paths in PAGES.items():
            visits = []
            for _ in range(5):
                begun = time.perf_counter()
                for path in paths:
                    client.get(path).raise_for_status()
                visits.append(time.perf_counter() - begun)
            times[name] = max(visits)
    return times


def paint_times(url: str, key: str) -> dict[str, float]:
    """Seconds until first contentful paint in a browser with an empty cache; the median of three."""
    from playwright.sync_api import sync_playwright

    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
    times: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(3):
            for name in ("sign-in", "now", "learning", "sessions", "policies"):
                context = browser.new_context()
                page = context.new_page()
                if name != "sign-in":
                    page.request.post(
                        f"{url}/v1/login", data={"key": key}, headers={"x-requested-with": "openclaw-rl"}
                    )
                page.goto(f"{url}/#/{name}")
                page.locator("h1").wait_for()
                page.wait_for_function(f"({paint}) !== null")
                times.setdefault(name, []).append(page.evaluate(paint) / 1000)
                context.close()
        browser.close()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="bench-web-"))
    system = scripted_system(home)
    if system.ledgers.serve.counts()["turns"] == 0:
        begun = time.perf_counter()
        seed(system, options.turns)
        print(f"seeded {options.turns} turns in {time.perf_counter() - begun:.0f} s", flush=True)
    begun = time.perf_counter()
    while system.dashboard.index():
        pass
    print(f"indexed in {time.perf_counter() - begun:.0f} s", flush=True)
    key = str(system.keys.key_of("default"))
    with listening(system) as url:
        served, painted = server_times(url, key), paint_times(url, key)
    for name, seconds in served.items():
        print(f"server  {name:<16} {1000 * seconds:6.0f} ms  {'' if seconds <= SERVER_S else 'TOO SLOW'}")
    for name, seconds in painted.items():
        print(f"paint   {name:<16} {1000 * seconds:6.0f} ms  {'' if seconds <= PAINT_S else 'TOO SLOW'}")
    well = max(served.values()) <= SERVER_S and max(painted.values()) <= PAINT_S
    if options.home is None:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
