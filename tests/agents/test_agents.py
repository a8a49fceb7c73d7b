"""Coding agents from npm, without a terminal, on the default model: set up by our command, using a tool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, clean_environment, command

pytestmark = pytest.mark.clients
Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-clients" / "agents" / "node_modules"
MCP_SERVER = PROGRAMS / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("agents") / "home"
    extra = {"PYTHONPATH": str(Path(__file__).parent)}
    with ServerProcess(home, "--no-learn", "--generate", "scripted:generate", environment=extra) as server:
        yield server


class Workspace:
    """A home and a folder to work in, for one agent."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.server, self.home, self.work = server, folder / "home", folder / "work"
        self.work.mkdir(parents=True)
        self.environment = {**clean_environment(server.home), "HOME": str(self.home), "NO_COLOR": "1"}

    def run(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            arguments, env=self.environment, cwd=self.work, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def events(self, *arguments: str | Path) -> list[Json]:
        lines = self.run(*arguments).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def turns_about(self, title: str) -> list[Json]:
        headers = {"authorization": f"Bearer {self.server.key}"}
        with httpx.Client(base_url=self.server.url, headers=headers, timeout=60) as http:
            sessions = http.get("/v1/sessions").json()["data"]
            (session,) = [one["id"] for one in sessions if one["title"] == title]
            found = http.get(f"/v1/sessions/{session}", params={"text": "true"}).json()
        return found["turns"]  # type: ignore[no-any-return]


@pytest.fixture
def workspace(tmp_path: Path, server: ServerProcess, require: Callable[[str, str], Path]) -> Workspace:
    require("node", "nodejs")
    return Workspace(tmp_path, server)


def test_codex_uses_an_mcp_server(workspace: Workspace, require: Callable[[str, str], Path]) -> None:
    workspace.run(command(), "connect", "codex", "--write")
    (workspace.home / ".codex" / "config.toml").write_text(
        "[mcp_servers.everything]\n"
        f"command = {json.dumps(str(require('node', 'nodejs')))}\n"
        f"args = {json.dumps([str(MCP_SERVER), 'stdio'])}\n"
        'enabled_tools = ["echo", "get-sum"]\n'
        'default_tools_approval_mode = "approve"\n'
    )
    codex = (PROGRAMS / ".bin" / "codex", "exec", "--profile", "openclaw-rl", "--skip-git-repo-check")
    first = workspace.events(*codex, "--json", "Please add 17 and 25")
    thread = next(event["thread_id"] for event in first if event["type"] == "thread.started")
    items = [event["item"] for event in first if event["type"] == "item.completed"]
    (called,) = [item for item in items if item["type"] == "mcp_tool_call"]
    assert (called["server"], called["tool"], called["status"]) == ("everything", "get-sum", "completed")
    assert "42" in json.dumps(called["result"])
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["Together they are 42."]

    workspace.events(*codex, "--json", "resume", thread, "Thanks")
    turns = workspace.turns_about("Please add 17 and 25")
    assert {turn["session_id"] for turn in turns} == {thread}
    names = [[call["name"] for call in turn["reply"].get("tool_calls") or []] for turn in turns]
    assert names == [["mcp__everything__get_sum"], [], []]
    assert [turn["continues"] for turn in turns] == [None, turns[0]["id"], turns[1]["id"]]
    (result,), (answer,) = turns[0]["next_state"], turns[1]["next_state"]
    assert (result["role"], "The sum of 17 and 25 is 42" in result["content"]) == ("tool", True)
    assert (answer["role"], answer["content"]) == ("user", "Thanks")


def test_cline_runs_a_command(workspace: Workspace) -> None:
    workspace.run(command(), "connect", "cline", "--write")
    (workspace.work / "note.txt").write_text("7 apples\n")
    cline = (PROGRAMS / ".bin" / "cline", "--json", "--timeout", "280")
    try:
        first = workspace.events(*cline, "Please count the apples")
        (result,) = [event for event in first if event["type"] == "run_result"]
        assert (result["finishReason"], result["text"]) == ("completed", "There are 2 words.")
    finally:
        workspace.run(PROGRAMS / ".bin" / "cline", "hub", "stop")
    # In so small a context, Cline has the past summarised between the call and its result.
    turns = workspace.turns_about("Please count the apples")
    names = [[call["name"] for call in turn["reply"].get("tool_calls") or []] for turn in turns]
    assert names == [["run_commands"], []]
    assert [turn["continues"] for turn in turns] == [None, turns[0]["id"]]
    (result,) = turns[0]["next_state"]
    assert (result["role"], "2 note.txt" in result["content"]) == ("tool", True)
