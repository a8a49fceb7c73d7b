"""OpenEnv servers: real ones, on the library itself, in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.envs import EnvironmentParts, create_environment
from openclaw_rl.envs.openenv import shown
from openclaw_rl.testing import wait_until

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
PYTHON = ROOT / ".venv-envs/openenv/bin/python"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a server; its URL."""
    running = []

    def start(*command: Any, cwd: Path = HERE) -> str:
        port = free_port()
        variables = {**os.environ, "PYTHONPATH": str(cwd)}
        arguments = [str(each).replace("PORT", str(port)) for each in command]
        running.append(subprocess.Popen([PYTHON, *arguments], cwd=cwd, env=variables))
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert running[-1].poll() is None, "the server has ended"
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, "the OpenEnv server answers", timeout_s=120)
        return url

    yield start
    for process in running:
        process.terminate()
        process.wait(30)


def episode(tasks: Path | str, *actions: Any) -> Any:
    command = [PYTHON, HERE / "episode.py", "openenv", str(tasks), json.dumps(actions)]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.env_adapters
def test_tools_of_a_server(serve: Callable[..., str]) -> None:
    url = serve("sums_openenv.py", "PORT")
    right = episode(url, ["answer", {"number": 1}])
    assert right["tools"] == ["answer"]
    assert "What is 0 plus 1?" in right["asked"][-1]
    assert (right["said"], right["done"], right["solved"], right["same"]) == ([["right"]], True, True, True)
    assert right["splits"] == {"train": 240, "validation": 30, "test": 30}
    wrong = episode(
        url, "I think it is 1.", ["answer", {"number": "one"}], ["guess", {}], ["answer", {"number": 2}]
    )
    assert [said[0].partition(":")[0] for said in wrong["said"]] == ["Call one of", "error", "error", "wrong"]
    assert (wrong["done"], wrong["solved"], wrong["score"]) == (True, False, -1.0)


@pytest.mark.env_adapters
def test_the_environment_that_comes_with_the_library(serve: Callable[..., str], tmp_path: Path) -> None:
    """``openenv init`` makes it: an echo, with an action of its own, rewarded by its length."""
    made = [PYTHON.with_name("openenv"), "init", "echoes", "--output-dir", tmp_path]
    subprocess.run(made, check=True, timeout=120, capture_output=True)
    url = serve("-m", "uvicorn", "server.app:app", "--port", "PORT", cwd=tmp_path / "echoes")
    rows = tmp_path / "tasks.jsonl"
    rows.write_text(json.dumps({"url": url, "instruction": "Say something long.", "solved_at": 1.0}))
    found = episode(rows, ["act", {"message": "hello world"}], "as plain words")
    assert found["tools"] == ["act"]
    assert found["asked"][-1].startswith("Say something long.")
    assert "hello world" in found["said"][0][0]
    assert "as plain words" in found["said"][1][0]
    assert found["facts"]["reward"] > 1.0
    assert found["solved"]


def test_what_it_needs_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pip install 'openclaw-rl\[openenv\]'|which OpenEnv server"):
        create_environment("openenv", EnvironmentParts(""))


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"echoed": "hi", "metadata": {"a": 1}}, "hi"),
        (
            {"result": {"data": 3, "content": []}, "tool_name": "x", "error": None, "metadata": {}},
            '{"result": 3}',
        ),
        ({"error": {"message": "no such tool"}}, "error: no such tool"),
        ({"metadata": {}}, ""),
        ({"a": 1, "b": "x"}, '{"a": 1, "b": "x"}'),
    ],
)
def test_what_is_shown_of_a_step(seen: Any, text: str) -> None:
    assert shown({"observation": seen}) == text


def test_what_an_environment_says_of_itself_is_told_at_the_beginning() -> None:
    seen = {"at": 0, "metadata": {"maze": [[0, 1]]}}
    assert shown({"observation": seen}, whole=True) == '{"at": 0, "metadata": {"maze": [[0, 1]]}}'
