"""Frameworks against the real server and model: the same eight scenarios with each, in venvs of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
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
    "agents_sdk": "all", "autogen": "agents_py", "crewai": "crewai", "dspy": "agents_py",
    "haystack": "agents_py", "instructor": "frameworks", "langgraph": "frameworks", "litellm": "agents_py",
    "llama_index": "frameworks", "mini_swe": "agents_py", "pydantic_ai": "all",
    "semantic_kernel": "semantic_kernel", "smolagents": "frameworks", "vercel": "vercel",
}  # fmt: skip
#: What a client does not have.
ABSENT = {("mini_swe", "streamed"), ("mini_swe", "structured")}
WORKING = [
    (client, scenario)
    for client in CLIENTS
    for scenario in ("plain", "streamed", "tools", "structured")
    if (client, scenario) not in ABSENT
]
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


@pytest.fixture(scope="module")
def run(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory, require: Callable[[str, str], Path]
) -> Run:
    """What came of a scenario. The turns run alone; of all others, one process of a client says it."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))},
        "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.key, "OPENAI_MODEL": MODEL,
        "HOME": str(home), "PYTHONWARNINGS": "ignore", "LANGSMITH_TRACING": "false",
        # Nothing but our server is asked: no prices of models, no telemetry.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true", "HAYSTACK_TELEMETRY_ENABLED": "False", "MSWEA_SILENT_STARTUP": "1",
    }  # fmt: skip

    @cache
    def run_driver(client: str, *scenarios: str) -> dict[str, dict[str, Any]]:
        if client == "vercel":
            # Node looks for packages beside the script.
            script = VENVS / "vercel" / "vercel_client.mjs"
            shutil.copy(DRIVERS / "vercel_client.mjs", script)
            command: list[str | Path] = [require("node", "nodejs"), script]
        else:
            command = [VENVS / CLIENTS[client] / "bin" / "python", DRIVERS / f"{client}_client.py"]
        done = subprocess.run(
            [*command, *scenarios], env=environment, cwd=home, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
        return {one["scenario"]: one for one in said}

    def run_scenario(client: str, scenario: str) -> dict[str, Any]:
        together = [name for c, name in WORKING if c == client] + list(ERRORS)
        return run_driver(client, *(["turns"] if scenario == "turns" else together))[scenario]

    return run_scenario


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize(("client", "scenario"), WORKING)
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
