"""A server with a local model reaches nobody: every connection of its processes is written down."""

from __future__ import annotations

from pathlib import Path

import httpx
import torch

from openclaw_rl.testing import ServerProcess, tiny_model, wait_until

#: Python loads a module of this name before anything else.
WATCH = """
import os, socket
_connect, _look_up = socket.socket.connect, socket.getaddrinfo
def _note(line):
    with open(os.environ["SEEN_FILE"], "a") as file:
        file.write(f"{line}\\n")
def connect(self, address):
    _note(f"connect {self.family.name} {address}")
    return _connect(self, address)
def getaddrinfo(host, *more, **options):
    _note(f"look up {host}")
    return _look_up(host, *more, **options)
socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo
_note("watching")
"""
HERE = ("AF_UNIX", "127.0.0.1", "localhost", "'::1'")


def test_no_connection_that_was_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "seen"
    torch.set_num_threads(1)
    model = tiny_model(tmp_path / "model")
    watched = {"PYTHONPATH": str(tmp_path), "SEEN_FILE": str(seen)}
    arguments = ("--model", str(model), "--renderer", "qwen3", "--judge", "rules")
    with ServerProcess(tmp_path / "home", *arguments, environment=watched) as server:
        headers = {"authorization": f"Bearer {server.key}"}
        body = {"model": "default", "messages": [{"role": "user", "content": "question 1"}], "max_tokens": 4}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        # The learn process as well: it looks for the engine once it is up.
        wait_until(lambda: "AF_UNIX" in seen.read_text(), "the learn process reached the engine", 120)
    lines = [line for line in seen.read_text().splitlines() if line != "watching"]
    assert [line for line in lines if not any(name in line for name in HERE)] == []
    assert seen.read_text().count("watching") >= 2
