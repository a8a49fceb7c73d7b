"""Ten conversations with somebody who wants short answers, on the real model, through the API alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

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


def is_short(text: str) -> bool:
    return len(text.strip()) > 8 and len(text.split()) <= 25 and "\n" not in text.strip()


class User:
    def __init__(self, server: ServerProcess) -> None:
        headers = {"authorization": f"Bearer {server.key}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=300)

    def close(self) -> None:
        self.http.close()

    def ask(self, messages: list[dict[str, str]], seed: int, max_tokens: int = 160) -> str:
        body = {"model": "default", "messages": messages, "temperature": 0.7, "seed": seed}
        answer = self.http.post("/v1/chat/completions", json={**body, "max_tokens": max_tokens})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def converse(self, number: int) -> None:
        """Ask, complain until the answer is short, give thanks. No rating, no header."""
        messages = [{"role": "user", "content": ASKED[number]}]
        for attempt in range(3):
            reply = self.ask(messages, seed=10 * number + attempt)
            happy = is_short(reply)
            said = (THANKS if happy else COMPLAINTS)[number % 3]
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
            if happy:
                break
        self.ask(messages, seed=number, max_tokens=16)

    def held_out(self) -> list[str]:
        with ThreadPoolExecutor(6) as pool:
            asked = [[{"role": "user", "content": question}] for question in HELD_OUT]
            return list(pool.map(lambda messages: self.ask(messages, seed=7), asked))

    def status(self) -> dict[str, object]:
        status: dict[str, object] = self.http.get("/v1/status").json()
        return status

    def wait(self) -> None:
        time.sleep(1.0)  # until what was just recorded can be seen
        wait_until(lambda: not self.status()["busy"], "everything was learned from", 300)


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("learning") / "home") as server:
        yield server


@pytest.mark.slow
def test_ten_conversations_change_what_the_model_does(server: ServerProcess) -> None:
    with closing(User(server)) as user:
        converse_and_compare(user, server)


def converse_and_compare(user: User, server: ServerProcess) -> None:
    before = user.held_out()
    for number in range(10):
        user.converse(number)
        if number == 4:
            user.wait()
    user.http.post("/v1/flush")
    user.wait()
    after = user.held_out()
    status = user.status()
    assert status["policy_version"] >= 2, server.log()  # type: ignore[operator]
    assert sum(map(is_short, before)) <= 1
    assert sum(map(is_short, after)) >= 5, after
    assert mean_words(after) < 0.5 * mean_words(before)
    # Nothing was lost on the way, and what served was checked first.
    funnel = status["funnel"]
    assert isinstance(funnel, dict)
    assert funnel["by_state"]["trained"] >= 12
    assert sum(funnel["by_state"].values()) == funnel["turns"]
    for policy in user.http.get("/v1/policies").json()["data"][:-1]:
        assert policy["gate"]["passed"] == (policy["status"] != "rejected")
        assert policy["metrics"]["mismatch"] is None or policy["metrics"]["mismatch"] < 0.05


def mean_words(replies: list[str]) -> float:
    return sum(len(reply.split()) for reply in replies) / len(replies)
