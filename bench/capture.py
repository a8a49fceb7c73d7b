"""Capture at a steady rate: turns placed, paired and recorded per second, with a fake engine.

    python bench/capture.py [--rate 50] [--seconds 60]

Agents hold sessions of eight turns and resend the whole conversation; each turn is one HTTP request through
the whole gateway, durable before it is answered, and pulled by the judge queue. Prints the rate reached, the
reply latency, and memory at start and end.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.testing import ScriptedEngine, scripted_system

SYSTEM = "You are a careful assistant. " * 60


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Session:
    """One agent's conversation; appends each reply to its history."""

    def __init__(self, number: int) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self.number = number

    async def ask(self, client: httpx.AsyncClient) -> float:
        text = f"Question {len(self.messages)} of session {self.number}: what comes next?"
        self.messages.append({"role": "user", "content": text})
        started = time.perf_counter()
        answer = await client.post(
            "/v1/chat/completions", json={"model": "scripted", "messages": self.messages}
        )
        elapsed = time.perf_counter() - started
        answer.raise_for_status()
        self.messages.append(
            {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}
        )
        return elapsed


async def run(rate: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as home:
        system = scripted_system(Path(home), max_waiting=1000)
        engine = system.engine
        assert isinstance(engine, ScriptedEngine)
        judge_queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, idle_s=1e12)
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(system.app()),
            base_url="http://bench",
            headers={"authorization": f"Bearer {system.keys.key_of('default')}"},
        )
        latencies: list[float] = []
        memory: list[float] = []
        waiting: list[Session] = [Session(i) for i in range(16)]
        opened = len(waiting)
        total = int(rate * seconds)
        tasks: set[asyncio.Task[None]] = set()
        stop = asyncio.Event()

        async def one(session: Session) -> None:
            nonlocal opened
            latencies.append(await session.ask(client))
            engine.requests.clear()  # the fake engine keeps every request, which would skew memory
            if len(session.messages) < 17:
                waiting.append(session)
            else:
                waiting.append(Session(opened))
                opened += 1

        async def pull() -> None:
            while not stop.is_set():
                await asyncio.to_thread(judge_queue.pull)
                await asyncio.sleep(0.5)

        pulling = asyncio.create_task(pull())
        started = time.perf_counter()
        for number in tqdm(range(total), desc="turns"):
            due = started + number / rate
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            if not waiting:
                waiting.append(Session(opened))
                opened += 1
            task = asyncio.create_task(one(waiting.pop(0)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if number % max(1, total // 10) == 0:
                memory.append(memory_mb())
        await asyncio.gather(*tasks)
        elapsed = time.perf_counter() - started
        await system.gateway.drain()
        stop.set()
        await pulling
        judge_queue.pull()
        counts = system.ledgers.learn.counts(time.time())
        latencies.sort()
        print(f"\nPython {platform.python_version()}, {rate:g} turns/s offered for {seconds:g} s\n")
        print(
            "| turns/s reached | reply ms (p50 / p99) | paired | unsaved or lost | memory MB, start → end |"
        )
        print("|---|---|---|---|---|")
        health = system.recorder.health()
        print(
            f"| {total / elapsed:.1f} | {1e3 * latencies[len(latencies) // 2]:.1f} / "
            f"{1e3 * latencies[int(0.99 * len(latencies))]:.1f} | {counts['queue']} of {total} | "
            f"{health.num_unsaved + health.num_lost} | {memory[1]:.0f} → {memory[-1]:.0f} |"
        )
        await client.aclose()
        await system.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    asyncio.run(run(options.rate, options.seconds))


if __name__ == "__main__":
    main()
