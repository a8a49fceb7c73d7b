"""One key, or none, keeps nobody else from being answered."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.serve.connections import Patience
from openclaw_rl.serve.slots import Slots
from openclaw_rl.testing import wait_until
from tests.security.conftest import Live, chat, status_of

CHAT = "/v1/chat/completions"


def pause_replies(live: Live, number: int) -> None:
    engine: Any = live.system.engine
    for _ in range(number):
        engine.say("slow", pause_after=1)


def resume(live: Live) -> None:
    engine: Any = live.system.engine
    live.loop.call_soon_threadsafe(engine.resume.set)


def test_one_keys_requests_leave_places_for_others(make_live: Callable[..., Live]) -> None:
    live = make_live(max_running=16, max_waiting=64)
    greedy, other = live.system.keys.add("greedy"), live.system.keys.add("other")
    pause_replies(live, 80)
    statuses: list[int] = []

    def ask() -> None:
        with live.client(greedy) as client:
            statuses.append(client.post(CHAT, json=chat(n=16)).status_code)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) == 3, "the greedy one's share is taken")
    assert (statuses, live.system.gateway.num_inflight) == ([429] * 3, 32)
    engine: Any = live.system.engine
    wait_until(lambda: len(engine.requests) == 32, "all of them run")
    engine._queue.clear()
    with live.client(other) as client:
        assert client.post(CHAT, json=chat(n=16)).status_code == 200
    with live.client(greedy) as client:
        refused = client.post(CHAT, json=chat(n=16))
        assert "your share" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
    resume(live)
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [200, 200, 429, 429, 429]
    assert live.system.gateway.num_inflight == 0


def test_places_are_shared_and_one_alone_has_all() -> None:
    users = 1
    slots = Slots(8, lambda: users)
    assert slots.take("a", 8) is None
    assert slots.take("b", 1) is not None
    slots.give_back("a", 8)
    users = 9
    assert [slots.take(user, 1) for user in "aaaa"] == [None] * 4
    assert slots.take("a", 1) is not None
    assert [slots.take(user, 1) for user in "bbcd"] == [None] * 4
    assert slots.take("e", 1) is not None
    assert slots.num_taken == 8


def test_a_stream_that_nobody_reads_gives_its_place_back(make_live: Callable[..., Live]) -> None:
    live = make_live(Patience(write_s=0.5), default_max_tokens=300_000)
    engine: Any = live.system.engine
    engine.context_length = 400_000
    engine.say([100] * 300_000)
    with live.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(chat(stream=True, logprobs=True)).encode()
        connection.sendall(live.head(CHAT, f"Content-Length: {len(body)}") + body)
        wait_until(lambda: live.system.gateway.num_inflight == 1, "the stream runs")
        wait_until(lambda: live.system.gateway.num_inflight == 0, "the stream was given up", 60)
    assert engine.num_cancelled == 1


@pytest.mark.parametrize("sent", ["nothing", "half a head", "half a body"])
def test_a_request_that_never_ends_is_ended(make_live: Callable[..., Live], sent: str) -> None:
    live = make_live(Patience(request_s=0.5))
    head = live.head(CHAT, "Content-Length: 1000")
    with live.connect() as connection:
        connection.sendall({"nothing": b"", "half a head": head[:40], "half a body": head + b"{"}[sent])
        assert status_of(connection) == 408
        assert connection.recv(100) == b""
    wait_until(lambda: not live.server.server_state.connections, "the connection is gone")


def test_a_request_that_is_answered_slowly_is_not_ended(make_live: Callable[..., Live]) -> None:
    live = make_live(Patience(request_s=0.5))
    engine: Any = live.system.engine
    engine.say("slow", pause_after=1)
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(post(live)))
    thread.start()
    wait_until(lambda: live.system.gateway.num_inflight == 1, "it is being answered")
    with live.connect() as witness:  # is ended after the same time
        assert status_of(witness) == 408
    resume(live)
    thread.join(60)
    assert done == [200]


def post(live: Live) -> int:
    with live.client() as client:
        return client.post(CHAT, json=chat()).status_code


def test_connections_are_bounded_and_idle_ones_give_way(make_live: Callable[..., Live]) -> None:
    live = make_live(max_connections=20)
    with ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(live.connect())
            connection.sendall(live.head(CHAT, "Content-Length: 1000"))
        assert post(live) == 200
        wait_until(lambda: len(live.server.server_state.connections) <= 20, "no more than allowed are open")
        assert post(live) == 200


SERVER = """
import resource, sys, pathlib, asyncio, uvicorn
resource.setrlimit(resource.RLIMIT_NOFILE, (240, 240))
from openclaw_rl.serve.connections import Patience, server_settings
from openclaw_rl.testing import scripted_system
system = scripted_system(pathlib.Path(sys.argv[1]))
port = int(sys.argv[2])
settings = server_settings(
    system.app(), system.config.serve, host="127.0.0.1", port=port, log_level="warning"
)
uvicorn.Server(settings).run()
"""


def test_at_a_low_file_limit_connections_cost_no_log_and_no_answer(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(tmp_path / "home"), str(port)], stdout=file, stderr=file
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    try:
        wait_until(lambda: answers(port), "the server listens", 60)
        with ExitStack() as stack:
            for _ in range(600):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                connection.sendall(b"POST /v1/login HTTP/1.1\r\n")
            assert answers(port)
        assert answers(port)
    finally:
        process.kill()
        process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.read_text().count("Traceback") == 0
    assert len(log.read_text().splitlines()) < 20


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def test_noise_is_logged_once(make_live: Callable[..., Live], caplog: pytest.LogCaptureFixture) -> None:
    live = make_live()
    for _ in range(50):
        with live.connect() as connection:
            connection.sendall(os.urandom(8) + b"\r\n\r\n")
            assert status_of(connection) == 400
    assert sum("Invalid HTTP" in record.getMessage() for record in caplog.records) <= 1
