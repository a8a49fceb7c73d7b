"""Does it learn? Ten conversations with a user who wants short answers, on a running system.

It uses only the API, as a client would: no ratings, no headers, no restarts. The same held-out questions are
asked before, after five and after ten conversations.

    python bench/learn.py [--runs 3] [--save docs/results/learning.json] [-- flags of openclaw-rl serve]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.processes.server_process import UNREMINDED
from openclaw_rl.testing import ServerProcess, wait_until

ASKED = [
    "What is photosynthesis?", "Why is the sky blue?", "How do I boil an egg?", "What is a black hole?",
    "Explain how a bicycle works.", "What causes rain?", "How does the internet work?", "What is inflation?",
    "Why do cats purr?", "How do airplanes fly?",
]  # fmt: skip
HELD_OUT = [
    "What is a volcano?", "Why do leaves change color?", "How does a refrigerator work?",
    "What is electricity?", "Why do birds migrate?", "How is glass made?", "What is an atom?",
    "How do fish breathe?", "What is a computer virus?", "Why do we need sleep?", "How does soap clean?",
    "What is the water cycle?",
]  # fmt: skip
COMPLAINTS = [
    "Too long. Please answer in one short sentence.",
    "That is far too much text. One short sentence, please.",
    "Please keep it to one short plain sentence.",
    "Shorter! Just one short sentence.",
]
THANKS = ["Perfect, thanks!", "Great, that's exactly what I wanted.", "Thank you, that is just right."]


def mean_words(replies: list[str]) -> float:
    return sum(len(reply.split()) for reply in replies) / len(replies)


def is_short(text: str) -> bool:
    return len(text.strip()) > 8 and len(text.split()) <= 25 and "\n" not in text.strip()


class User:
    """A simulated user who wants short answers, says so in words, and never rates anything."""

    def __init__(self, server: ServerProcess, seed: int = 0) -> None:
        self.seed = seed
        headers = {"authorization": f"Bearer {server.key}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=300)

    def close(self) -> None:
        self.http.close()

    def ask(self, messages: list[dict[str, str]], seed: int, max_tokens: int = 160) -> str:
        body = {"model": "default", "messages": messages, "temperature": 0.7, "seed": self.seed + seed}
        answer = self.http.post("/v1/chat/completions", json={**body, "max_tokens": max_tokens})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def converse(self, number: int) -> None:
        """Ask, complain until the answer is short, thank. No ratings, no headers."""
        messages = [{"role": "user", "content": ASKED[number]}]
        for attempt in range(3):
            reply = self.ask(messages, seed=10 * number + attempt)
            happy = is_short(reply)
            said = (THANKS if happy else COMPLAINTS)[number % 3]
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
            if happy:
                break
        self.ask(messages, seed=number, max_tokens=16)

    def held_out(self, number: int = len(HELD_OUT)) -> list[str]:
        """Replies to the held-out questions, or to the first few."""
        with ThreadPoolExecutor(6) as pool:
            asked = [[{"role": "user", "content": question}] for question in HELD_OUT[:number]]
            return list(pool.map(lambda messages: self.ask(messages, seed=7), asked))

    def status(self) -> dict[str, object]:
        status: dict[str, object] = self.http.get("/v1/status").json()
        return status

    def wait(self) -> None:
        time.sleep(1.0)  # until what was just recorded is visible to /v1/status
        wait_until(lambda: not self.status()["busy"], "everything was learned from", 1800)


def measure(home: Path, seed: int, flags: list[str]) -> dict[str, Any]:
    """One run: share of short replies, words per reply, and seconds, after 0, 5 and 10 conversations."""
    points: list[dict[str, Any]] = []
    with ServerProcess(home, *UNREMINDED, *flags) as server, closing(User(server, 1000 * seed)) as user:
        started = time.monotonic()
        for number in range(11):
            if number in (0, 5, 10):
                if number == 10:
                    user.http.post("/v1/flush")
                user.wait()
                replies = user.held_out()
                points.append(
                    {
                        "conversations": number,
                        "short": sum(map(is_short, replies)) / len(replies),
                        "words": mean_words(replies),
                        "seconds": time.monotonic() - started,
                        "version": user.status()["policy_version"],
                        "replies": dict(zip(HELD_OUT, replies, strict=True)),
                    }
                )
                print(
                    f"  after {number}: {points[-1]['short']:.2f} short, {points[-1]['words']:.0f} words",
                    flush=True,
                )
            if number < 10:
                user.converse(number)
        versions = user.http.get("/v1/policies").json()["data"]
    return {"points": points, "versions": versions}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--save", type=Path)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    runs = []
    for seed in range(options.runs):
        print(f"run {seed + 1} of {options.runs}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measure(Path(folder) / "home", seed, options.flags))
        if options.save:  # after each run, so that a partial result is kept
            machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
            options.save.write_text(json.dumps({"machine": machine, "runs": runs}, indent=2) + "\n")
    print(table(runs))


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| conversations | short replies to held-out questions | words | seconds |", "|---|---|---|---|"]
    for rows in zip(*(run["points"] for run in runs), strict=True):
        cells = [" / ".join(f"{row[key]:{form}}" for row in rows) for key, form in _COLUMNS]
        lines.append(f"| {rows[0]['conversations']} | {' | '.join(cells)} |")
    return "\n".join(lines)


_COLUMNS = (("short", ".2f"), ("words", ".0f"), ("seconds", ".0f"))

if __name__ == "__main__":
    main()
