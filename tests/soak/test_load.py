"""Two hundred clients at once, beside some that never read, never finish asking, or leave: fair and bounded.

What was measured is printed; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import wait_until
from tests.soak.actors import SERVED_NAME, Actor, model_folder, run_serve
from tests.soak.kills import free_port

NUM_KEYS, CLIENTS_EACH, REQUESTS_EACH = 20, 10, 10
NUM_HALF_OPEN, NUM_SLOW = 100, 20


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


class Flood:
    def __init__(self, url: str) -> None:
        self._url = url
        self.seconds: list[float] = []
        self.answered: Counter[str] = Counter()
        self.num_refused = self.num_left = 0

    async def client(self, user: str, key: str, number: int) -> None:
        """Asks ten times, tries again when refused; every fifth stream is left in the middle."""
        chance = random.Random(f"{user} {number}")
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=300) as http:
            for i in range(REQUESTS_EACH):
                said = {"role": "user", "content": f"{user} {number} asks {i}"}
                await self._ask(
                    http, user, {"model": SERVED_NAME, "stream": True, "messages": [said]}, chance
                )

    async def _ask(self, http: httpx.AsyncClient, user: str, body: object, chance: random.Random) -> None:
        began = time.monotonic()
        while True:
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code == 200:
                    if chance.random() < 0.2:
                        self.num_left += 1
                        return
                    assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
                    break
                assert answer.status_code == 429
                self.num_refused += 1
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        self.seconds.append(time.monotonic() - began)
        self.answered[user] += 1

    async def run(self, keys: dict[str, str]) -> None:
        clients = [self.client(user, key, n) for user, key in keys.items() for n in range(CLIENTS_EACH)]
        await asyncio.gather(*clients)


@pytest.mark.soak
def test_two_hundred_clients_beside_those_who_mean_ill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    ring = KeyRing(home / "keys.json")
    keys = {f"user{number}": ring.add(f"user{number}") for number in range(NUM_KEYS)}
    port, model = free_port(), model_folder(tmp_path / "model")
    actor = Actor(tmp_path / "log", run_serve, home, model, port).start()
    try:
        wait_until(lambda: answers(port), "the server listens", 120)
        server, flood = psutil.Process(actor.pid), Flood(f"http://127.0.0.1:{port}")
        with ExitStack() as stack:
            for number in range(NUM_HALF_OPEN + NUM_SLOW):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: {keys['user0']}\r\n"
                connection.sendall(head.encode() if number < NUM_HALF_OPEN else slow(head))
            before, began = server.memory_info().rss, time.monotonic()
            asyncio.run(flood.run(keys))
            took, files = time.monotonic() - began, server.num_fds()
        grown = (server.memory_info().rss - before) / 1e6
        ordered = sorted(flood.seconds)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        print(
            f"{len(ordered)} replies in {took:.1f} s, {flood.num_refused} refusals, {flood.num_left} left; "
            f"p50 {p50:.2f} s, p99 {p99:.2f} s, refusals included; by key {min(flood.answered.values())} to "
            f"{max(flood.answered.values())}; {files} files open, {grown:.0f} MB more"
        )
        assert len(ordered) + flood.num_left == NUM_KEYS * CLIENTS_EACH * REQUESTS_EACH
        assert min(flood.answered.values()) > 0.5 * max(flood.answered.values())
        assert files < 700
        assert grown < 500
        assert answers(port)
    finally:
        actor.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()


def slow(head: str) -> bytes:
    """A whole request whose reply is never read."""
    said = [{"role": "user", "content": "x"}]
    body = json.dumps({"model": SERVED_NAME, "stream": True, "messages": said})
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
