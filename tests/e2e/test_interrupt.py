"""Ctrl-C: quiet at any moment, and whoever is being answered gets the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, clean_environment, command, wait_until


class SlowUpstream(BaseHTTPRequestHandler):
    """Says one word, then waits to be released."""

    released = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._say("Hello", None)
        self.released.wait(60)
        self._say(" there", "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, text: str, reason: str | None) -> None:
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": reason}
        chunk = {
            "id": "u1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """Nothing: the test's output stays readable."""


@pytest.fixture
def upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowUpstream)
    SlowUpstream.released.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    SlowUpstream.released.set()
    server.shutdown()
    server.server_close()


def test_one_finishes_what_is_being_said_and_ends_quietly(tmp_path: Path, upstream: str) -> None:
    server = ServerProcess(tmp_path / "home", "--upstream", upstream, "--no-learn").start()
    body = {"model": "default", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as answer:
        lines = answer.iter_lines()
        assert "Hello" in next(line for line in lines if "content" in line)
        os.kill(server.pid, signal.SIGINT)
        wait_until(lambda: "stopping" in server.log(), "the server says that it stops")
        SlowUpstream.released.set()
        rest = list(lines)
    assert any(" there" in line for line in rest)
    assert "data: [DONE]" in rest
    assert server.process.wait(30) == 0
    assert "Traceback" not in server.log()


def test_a_second_one_does_not_wait(tmp_path: Path, upstream: str) -> None:
    server = ServerProcess(tmp_path / "home", "--upstream", upstream, "--no-learn").start()
    body = {"model": "default", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as answer:
        next(answer.iter_lines())
        os.kill(server.pid, signal.SIGINT)
        wait_until(lambda: "stopping" in server.log(), "the server says that it stops")
        os.kill(server.pid, signal.SIGINT)
        assert server.process.wait(30) == 130
    assert "Traceback" not in server.log()


def test_while_the_command_is_being_imported(tmp_path: Path) -> None:
    """The signal comes at the first import after the command's own first lines."""
    code = (
        "import os, signal, sys\n"
        # Begun in the background, as CI may, a process ignores it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'openclaw_rl.commands.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from openclaw_rl.__main__ import run\n"
        "sys.exit(run())\n"
    )
    python = str(Path(command()).with_name("python"))
    ended = subprocess.run(
        [python, "-c", code, "status"],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (130, "")
