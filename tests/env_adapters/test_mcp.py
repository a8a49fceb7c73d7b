"""MCP servers as tools: a real server, by the official SDK, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from openclaw_rl.envs.mcp_tools import McpTools
from openclaw_rl.envs.toolcall import read_tools

ROOT = Path(__file__).parents[2]


@pytest.mark.env_adapters
def test_tools_of_a_server(tmp_path: Path) -> None:
    python = ROOT / ".venv-envs/mcp/bin/python"
    program = Path(__file__).with_name("mcp_episode.py")
    ran = subprocess.run(
        [python, program, tmp_path], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["tools"] == ["add", "triple", "fail", "answer"]
    assert found["said"] == [
        "42",
        "error: 'number' of triple must be of type integer",
        "error: Error executing tool fail: it is broken",
        "3",
    ]
    assert found["solved"]


async def test_without_the_sdk_it_is_said_what_to_install() -> None:
    tools = McpTools({"sums": {"command": "nothing"}})
    with pytest.raises(RuntimeError, match=r"MCP server sums: .*pip install 'openclaw-rl\[mcp\]'"):
        await tools.open()


def test_a_file_of_tools_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('{"mcpServers": {"a": {"url": "http://127.0.0.1:1"}}, "tools": ["add", "python"]}')
    assert set(read_tools(str(file))) == {"mcpServers", "tools"}
    for text, message in (
        ("[", "is not JSON"),
        ('{"servers": {}}', "a JSON list of tools"),
        ('{"tools": ["divide"]}', "there is no tool 'divide'"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_tools(str(file))
