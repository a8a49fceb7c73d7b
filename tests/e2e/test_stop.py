"""How a server ends, and what it says when it cannot begin."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, clean_environment, command, wait_until

MODEL = "SmolLM2-135M-Instruct"
#: Measuring the fastest kernel takes most of a start, and no test here is about speed.
QUICK = ("--kernel", "float")
STORY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a long story about the sea."}],
    "temperature": 0,
}


@pytest.fixture
def home(model_path: Path, tmp_path: Path) -> Path:
    return tmp_path / "home"


def lines_of(server: ServerProcess, body: dict[str, Any]) -> Iterator[str]:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.stream(
        "POST",
        f"{server.url}/v1/chat/completions",
        json={**body, "stream": True},
        headers=headers,
        timeout=120,
    ) as answer:
        answer.raise_for_status()
        yield from (line for line in answer.iter_lines() if line)


def cli(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command(), *arguments], env=clean_environment(home, env), capture_output=True, text=True, timeout=120
    )


def test_a_graceful_stop_finishes_what_is_running(home: Path) -> None:
    server = ServerProcess(home, *QUICK).start()
    stream = lines_of(server, {**STORY, "max_tokens": 60})
    first = next(stream)
    server.terminate()
    address = httpx.URL(server.url)
    wait_until(lambda: not _accepts(address.host, address.port or 0), "new connections are refused")
    assert server.process.poll() is None, "the stream is still running"
    lines = [first, *stream]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert server.stop() == 0
    assert "Traceback" not in server.log()
    assert cli(home, "data", "check").returncode == 0
    turns = [
        turn for line in cli(home, "data", "export").stdout.splitlines() for turn in json.loads(line)["turns"]
    ]
    assert [turn["id"] for turn in turns] == [chunks[0]["id"]]
    status = cli(home, "status")
    assert (status.returncode, "no server is running" in status.stderr) == (2, True)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_a_drain_that_takes_too_long_is_cut_and_recorded(home: Path) -> None:
    server = ServerProcess(home, *QUICK, "--drain-timeout-s", "1").start()
    stream = lines_of(server, {**STORY, "max_tokens": 7000, "temperature": 1.5})
    first = json.loads(next(stream).removeprefix("data: "))
    server.terminate()
    with pytest.raises(httpx.HTTPError):
        for _ in stream:
            pass
    assert server.stop() == 0
    (line,) = cli(home, "data", "export").stdout.splitlines()
    (turn,) = json.loads(line)["turns"]
    assert turn["id"] == first["id"]
    assert turn["exact"]["finish_reason"] == "cancelled"
    assert turn["trainable"] is False


def test_one_home_one_server(server: ServerProcess) -> None:
    second = cli(server.home, "serve")
    assert second.returncode == 2
    assert f"another server is using {server.home}" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert httpx.get(f"{server.url}/healthz").status_code == 200, "the first one is unharmed"
    assert cli(server.home, "status").returncode == 0, "and still found"


def test_a_taken_port_is_said_at_once(server: ServerProcess, tmp_path: Path) -> None:
    port = str(httpx.URL(server.url).port)
    clash = cli(tmp_path, "serve", PORT=port)
    assert clash.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in clash.stderr
    assert len(clash.stderr.splitlines()) == 1


def test_the_command_line_and_the_api_show_the_same_status(server: ServerProcess, http: httpx.Client) -> None:
    shown = cli(server.home, "status")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"{MODEL} at {server.url}; the unchanged base model answers.")
    status = json.loads(cli(server.home, "status", "--json").stdout)
    assert status.keys() == http.get("/v1/status").json().keys()


def test_a_new_key_works_without_a_restart(server: ServerProcess) -> None:
    added = cli(server.home, "keys", "add", "ada").stdout.strip()
    assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": added}).status_code == 200
    assert cli(server.home, "keys", "remove", "ada").returncode == 0
    assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": added}).status_code == 401


def test_a_key_is_needed_before_the_body_is_read(server: ServerProcess) -> None:
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 0), timeout=10) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_a_full_disk_costs_no_reply(home: Path) -> None:
    """The kernel refuses to let the ledger's files grow, as a full disk would."""
    with ServerProcess(home, *QUICK) as server:
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            body = {**STORY, "max_tokens": 4}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, hard))
            ids = []
            for _ in range(2):
                answer = client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200
                ids.append(answer.json()["id"])
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert client.get("/v1/status").json()["ledger"]["num_unsaved"] == 2
            problem = cli(home, "status").stdout.splitlines()[-1]
            assert problem.startswith("Problem: the ledger cannot be written (")
            assert problem.endswith("; 2 replies kept in memory until it can")
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
            wait_until(lambda: client.get("/readyz").json()["status"] == "ok", "the backlog is written")
            for reply_id in ids:
                assert client.get(f"/v1/turns/{reply_id}").status_code == 200
            assert client.get("/v1/status").json()["ledger"]["num_lost"] == 0
    assert cli(home, "data", "check").stdout.strip() == "the ledger is sound"


def test_an_idle_connection_is_left_to_its_client(server: ServerProcess) -> None:
    """Closed by both sides at the same moment it costs a request, and clients close theirs after seconds."""
    address = httpx.URL(server.url)
    with closing(HTTPConnection(address.host, address.port, timeout=10)) as connection:
        connection.connect()
        connection.auto_open = 0  # a second connection would prove nothing
        for pause in (0, 6.5):
            time.sleep(pause)
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()


def test_prompts_and_keys_stay_out_of_the_log(server: ServerProcess, http: httpx.Client) -> None:
    secret = "the-secret-word-is-xylophone"
    for content in (secret, [{"type": "image_url", "text": secret}]):
        messages = [{"role": "user", "content": content}]
        http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, "max_tokens": 2})
    httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {secret}"})
    http.post("/v1/chat/completions", content=f'{{"messages": "{secret}'.encode())
    assert secret not in server.log()
    assert server.log().count(server.key) == 2, "the greeting and its curl line, nothing else"
    assert "Traceback" not in server.log()


def test_data_goes_out_and_comes_back_exactly(
    server: ServerProcess, http: httpx.Client, tmp_path: Path
) -> None:
    threads = [
        threading.Thread(
            target=http.post,
            args=("/v1/chat/completions",),
            kwargs={"json": {**STORY, "max_tokens": 3, "seed": seed, "odd": "ä\ud7ff"}},
        )
        for seed in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert cli(server.home, "data", "export", str(first)).returncode == 0
    other = tmp_path / "other"
    imported = cli(other, "data", "import", str(first))
    assert imported.returncode == 0, imported.stderr
    assert cli(other, "data", "check").returncode == 0
    assert cli(other, "data", "export", str(second)).returncode == 0
    assert _sessions(second) == _sessions(first)
    assert cli(other, "data", "import", str(first)).returncode == 0, "twice changes nothing"
    assert cli(other, "data", "export", str(second)).returncode == 0
    assert _sessions(second) == _sessions(first)


def _sessions(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["session_id"]: line for line in lines}
