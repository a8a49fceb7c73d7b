"""The examples in examples/clients, run as a reader would, against the real server and model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from openclaw_rl.testing import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "clients"
VENVS = ROOT / ".venv-clients"
#: Example, the environment it needs, and how many turns each of its conversations has, newest first.
HEAVY = [
    ("agents_sdk.py", "all", [2, 1]),
    ("langchain_client.py", "all", [1, 1, 1, 2]),
    ("pydantic_ai_client.py", "all", [1, 1, 2, 2, 2]),
    ("litellm_client.py", "litellm", [1, 1, 2]),
    ("llm_command.sh", "all", [2]),
]


@pytest.fixture
def environment(server: ServerProcess, tmp_path: Path) -> dict[str, str]:
    """What ``openclaw-rl connect env`` says, and a home of its own."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))},
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.key,
        "OPENAI_MODEL": MODEL,
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": server.key,
        "ANTHROPIC_MODEL": MODEL,
        "HOME": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path / "llm"),
        "PYTHONWARNINGS": "ignore",
    }


def run(command: list[str | Path], environment: dict[str, str], folder: Path = ROOT) -> str:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def sessions(http: httpx.Client, newer_than: str | None) -> list[int]:
    """How many turns the newest sessions have."""
    listed = http.get("/v1/sessions", params={"limit": 50}).json()["data"]
    ids = [session["id"] for session in listed]
    return [session["num_turns"] for session in listed[: ids.index(newer_than) if newer_than else None]]


def newest(http: httpx.Client) -> str | None:
    listed = http.get("/v1/sessions", params={"limit": 1}).json()["data"]
    return listed[0]["id"] if listed else None


def test_openai_for_python(environment: dict[str, str], http: httpx.Client) -> None:
    before = newest(http)
    shown = run([sys.executable, EXAMPLES / "openai_sdk.py"], environment)
    assert "colour=" in shown
    assert "get_weather" in shown
    assert sessions(http, before) == [1, 1, 2]


def test_anthropic_for_python(environment: dict[str, str], http: httpx.Client) -> None:
    before = newest(http)
    shown = run([sys.executable, EXAMPLES / "anthropic_sdk.py"], environment)
    assert "get_weather {'city':" in shown
    assert sessions(http, before) == [2, 2]


@pytest.mark.node
@pytest.mark.parametrize(
    ("name", "conversations", "error"),
    [
        ("openai_sdk.mjs", [1, 2], "NotFoundError model_not_found"),
        ("anthropic_sdk.mjs", [2, 2], "NotFoundError 404"),
    ],
)
def test_javascript(
    name: str,
    conversations: list[int],
    error: str,
    environment: dict[str, str],
    node_client: Path,
    require: Callable[[str, str], Path],
    http: httpx.Client,
) -> None:
    before = newest(http)
    shown = run([require("node", "nodejs"), name], environment, node_client)
    assert "get_weather" in shown
    assert error in shown
    assert sessions(http, before) == conversations


@pytest.mark.clients
@pytest.mark.parametrize(("name", "venv", "conversations"), HEAVY)
def test_heavy_clients(
    name: str, venv: str, conversations: list[int], environment: dict[str, str], http: httpx.Client
) -> None:
    before, programs = newest(http), VENVS / venv / "bin"
    path = f"{programs}{os.pathsep}{environment['PATH']}"
    program = [EXAMPLES / name] if name.endswith(".sh") else [programs / "python", EXAMPLES / name]
    shown = run([*program], {**environment, "PATH": path})
    assert len(shown.split()) > 5
    assert sessions(http, before) == conversations


@pytest.mark.clients
def test_langchain_s_own_suite(environment: dict[str, str], tmp_path: Path) -> None:
    """What it skips and expects to fail is said in ``tests/conformance/langchain_chat.py``."""
    settings = {"asyncio_mode": "auto", "asyncio_default_test_loop_scope": "session"}
    done = subprocess.run(
        [
            VENVS / "all" / "bin" / "python", "-m", "pytest", "--noconftest", "-q", "-rfExX", "--tb=short",
            *("-c", os.devnull, "--rootdir", tmp_path, "-p", "no:cacheprovider", "-W", "ignore"),
            *(f"--override-ini={name}={value}" for name, value in settings.items()),
            ROOT / "tests" / "conformance" / "langchain_chat.py",
        ],
        env={**environment, "ANTHROPIC_API_URL": environment["ANTHROPIC_BASE_URL"]},
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 90


@pytest.mark.clients
def test_no_client_brings_another_torch() -> None:
    assert [path for path in VENVS.glob("*/lib/python*/site-packages/torch*")] == []
