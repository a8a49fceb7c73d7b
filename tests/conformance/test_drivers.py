"""Frameworks against the real server and model: the same eight scenarios with each, in venvs of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ServerProcess

pytestmark = pytest.mark.clients
MODEL = "SmolLM2-135M-Instruct"
ROOT = Path(__file__).parents[2]
DRIVERS = Path(__file__).parent / "drivers"
VENVS = ROOT / ".venv-clients"
#: And the environment that each runs in.
CLIENTS = {
    "agents_sdk": "all", "instructor": "frameworks", "langgraph": "frameworks", "llama_index": "frameworks",
    "pydantic_ai": "all", "smolagents": "frameworks", "vercel": "vercel",
}  # fmt: skip
#: What the error has to show of our answer.
ERRORS = {
    "wrong_key": "api key",
    "unknown_model": "does not exist here",
    "too_long": "maximum context length",
}


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("drivers") / "home", "--no-learn") as server:
        yield server


Run = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path, require: Callable[[str, str], Path]) -> Run:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))},
        "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.key, "OPENAI_MODEL": MODEL,
        "HOME": str(tmp_path), "PYTHONWARNINGS": "ignore", "LANGSMITH_TRACING": "false",
    }  # fmt: skip

    def run_driver(client: str, scenario: str) -> dict[str, Any]:
        if client == "vercel":
            # Node looks for packages beside the script.
            script = VENVS / "vercel" / "vercel_client.mjs"
            shutil.copy(DRIVERS / "vercel_client.mjs", script)
            command: list[str | Path] = [require("node", "nodejs"), script, scenario]
        else:
            command = [VENVS / CLIENTS[client] / "bin" / "python", DRIVERS / f"{client}_client.py", scenario]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return said

    return run_driver


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scenario", ["plain", "streamed", "tools", "structured"])
def test_it_works_unchanged(run: Run, client: str, scenario: str) -> None:
    said = run(client, scenario)
    assert said.get("result"), said


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scenario", list(ERRORS))
def test_an_error_says_what_is_wrong(run: Run, client: str, scenario: str) -> None:
    said = run(client, scenario)
    assert ERRORS[scenario] in said.get("error", "").lower(), said


@pytest.mark.parametrize("client", CLIENTS)
def test_three_turns_are_one_session(run: Run, client: str, http: httpx.Client) -> None:
    known = {session["id"] for session in http.get("/v1/sessions").json()["data"]}
    assert "error" not in (said := run(client, "turns")), said
    opened = [s for s in http.get("/v1/sessions").json()["data"] if s["id"] not in known]
    assert [session["num_turns"] for session in opened] == [3]
    turns = http.get(f"/v1/sessions/{opened[0]['id']}").json()["turns"]
    assert [turn["continues"] for turn in turns] == [None, *(turn["id"] for turn in turns[:-1])]
    assert [bool(turn["next_state"]) for turn in turns] == [True, True, False]
