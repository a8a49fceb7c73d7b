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


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["the model is being loaded", "the learn process has just started"])
def test_while_it_starts_it_ends_quietly_and_leaves_nothing(
    moment: str, tmp_path: Path, model_path: Path
) -> None:
    """To the whole group of processes, as a terminal sends it."""
    environment = clean_environment(tmp_path / "home", {"OPENCLAW_RL_MODEL": str(model_path), "PORT": "0"})
    serve = subprocess.Popen(
        [command(), "serve"], env=environment, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # A shell without job control starts what is in the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        loading = "loading" if moment.startswith("the model") else "learn"
        wait_until(lambda: is_at(loading, serve.pid, model_path), moment, 120)
        os.killpg(serve.pid, signal.SIGINT)
        said, _ = serve.communicate(timeout=60)
        assert serve.returncode in (0, 130), said
        assert "Traceback" not in said
        wait_until(lambda: not members(serve.pid), "no process is left", 30)
    finally:
        for pid in members(serve.pid):
            os.kill(pid, signal.SIGKILL)


def is_at(moment: str, pid: int, model: Path) -> bool:
    if moment == "learn":
        return len(members(pid)) > 1
    return any(str(model.resolve()) in (Path(f"/proc/{each}/maps").read_text()) for each in members(pid))


def members(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found
