"""kill -9 under load: every reply that was received completely is in the ledger, and nothing foreign."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import ServerProcess, wait_until

MODEL = "SmolLM2-135M-Instruct"
NUM_CLIENTS = 6


@dataclass
class Seen:
    """What the clients asked and got, over all rounds."""

    asked: set[str] = field(default_factory=set)
    complete: dict[str, str] = field(default_factory=dict)
    """Reply id -> its text, for replies whose final chunk and [DONE] were received."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """Asks one short question after the other until the server is gone."""

    def __init__(self, server: ServerProcess, name: str, seen: Seen) -> None:
        super().__init__(name=name)
        self._url, self._key, self._seen = server.url, server.key, seen
        self.failure: Exception | None = None

    def run(self) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        try:
            with httpx.Client(base_url=self._url, headers=headers, timeout=60) as client:
                for number in range(10_000):
                    self._ask(client, f"{self.name}, question {number}")
        except httpx.TransportError:
            pass  # killed
        except Exception as error:
            self.failure = error

    def _ask(self, client: httpx.Client, question: str) -> None:
        with self._seen.lock:
            self._seen.asked.add(question)
        body = {
            "model": MODEL, "stream": True, "max_tokens": 4,
            "messages": [{"role": "user", "content": question}],
        }  # fmt: skip
        reply_id, text, finished = "", "", False
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    assert finished
                    with self._seen.lock:
                        self._seen.complete[reply_id] = text
                elif line:
                    chunk = json.loads(line.removeprefix("data: "))
                    reply_id = chunk["id"]
                    text += chunk["choices"][0]["delta"].get("content", "")
                    finished = chunk["choices"][0]["finish_reason"] is not None


def run_round(server: ServerProcess, round_: int, seen: Seen, moment: random.Random) -> None:
    """Start on what the last round left, load, kill after a random number of complete replies."""
    server.start()
    before = len(seen.complete)
    clients = [Client(server, f"round {round_} client {i}", seen) for i in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    expected = before + moment.randrange(1, 4 * NUM_CLIENTS)
    wait_until(lambda: len(seen.complete) >= expected, f"{expected - before} replies are complete", 120)
    pause = threading.Event()
    pause.wait(moment.uniform(0, 0.2))  # not in step with the replies
    server.kill()
    for client in clients:
        client.join(60)
        assert not client.is_alive()
        assert client.failure is None, repr(client.failure)


def check_ledger(home: Path, seen: Seen) -> None:
    ledger = ServeLedger(sqlite_url(home / "serve.db"))
    try:
        assert ledger.check_integrity() == []
        turns = {turn.id: turn for session, _ in ledger.iter_sessions() for turn in session}
    finally:
        ledger.close()
    missing = seen.complete.keys() - turns.keys()
    assert not missing, f"{len(missing)} replies were received completely and are gone"
    for reply_id, text in seen.complete.items():
        assert turns[reply_id].reply["content"] == text
    asked = [turn.messages[0]["content"] for turn in turns.values()]
    assert set(asked) <= seen.asked, "a turn nobody asked for"
    assert len(asked) == len(set(asked)), "a turn twice"
    for turn in turns.values():
        assert 1 <= len(turn.tokens) <= 4
        assert all(token.logprob <= 0 for token in turn.tokens)


@pytest.fixture
def kill_rounds(model_path: Path, tmp_path: Path) -> Callable[[int, int], Seen]:
    def run(num_rounds: int, seed: int) -> Seen:
        moment, seen = random.Random(seed), Seen()
        # Measuring the fastest kernel takes most of a start, and this is not about speed.
        server = ServerProcess(tmp_path / "home", "--kernel", "float")
        try:
            for round_ in range(num_rounds):
                run_round(server, round_, seen, moment)
                check_ledger(server.home, seen)
            # The survivors are also what the next server shows.
            server.start()
            headers = {"authorization": f"Bearer {server.key}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                for reply_id in seen.complete:
                    assert client.get(f"/v1/turns/{reply_id}").status_code == 200
            assert server.stop() == 0
        finally:
            server.kill()
        return seen

    return run


def test_kill_9_under_load_three_times(kill_rounds: Callable[[int, int], Seen]) -> None:
    seen = kill_rounds(3, 1)
    assert len(seen.complete) >= 3
    assert len(seen.asked) > len(seen.complete), "some replies were cut off, or this proves nothing"


@pytest.mark.chaos
def test_kill_9_under_load_fifty_times(kill_rounds: Callable[[int, int], Seen]) -> None:
    seen = kill_rounds(50, random.SystemRandom().randrange(2**32))
    assert len(seen.complete) >= 50
    assert len(seen.asked) > len(seen.complete)
