"""Our own MCP server, asked by the official SDK's client over stdio, beside a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from openclaw_rl.commands import cli
from openclaw_rl.commands.mcp import SKILL, Tools
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system, until
from tests.learn.test_wishes import LISTS, converse, sampler_of

ROOT = Path(__file__).parents[2]
NAMES = ["what_have_you_learned", "forget_wish", "pause_wish", "which_version", "evaluate"]


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    system = scripted_system(tmp_path / "home")
    yield system
    await system.close()


@pytest.mark.env_adapters
async def test_an_agent_asks_what_was_learned_and_has_it_forgotten(system: ServingSystem) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    server = uvicorn.Server(
        uvicorn.Config(system.app(), host="127.0.0.1", port=0, log_level="error", ws="none")
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or None, "the server listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    program = await asyncio.create_subprocess_exec(
        ROOT / ".venv-envs/own_mcp/bin/python", Path(__file__).with_name("own_mcp_client.py"),
        f"http://127.0.0.1:{port}", str(system.keys.key_of("default")), first,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1, stderr=-1,
    )  # fmt: skip
    out, errors = await program.communicate()
    server.should_exit = True
    await serving
    assert program.returncode == 0, errors.decode()
    found = json.loads(out)
    assert found["tools"] == NAMES
    known, version, evaluated, paused, forgotten, empty, again = found["said"]
    [wish] = known[1]["result"]
    assert (wish["id"], wish["wish"], wish["asked"], wish["state"]) == (first, LISTS, "once", "not yet")
    assert (version[1]["policy_version"], version[1]["model"]) == (0, "scripted")
    assert evaluated[1]["first_replies_right"]["last"] == {"good": 0, "of": 1}
    assert evaluated[1]["answers"] == [{"question": "Hi", "version 0": "Hello!"}]
    assert paused[2] == [f"{LISTS}: paused"]
    assert "forgotten" in forgotten[2][0]
    assert empty[1]["result"] == []
    assert again[0], "what is gone cannot be forgotten again"
    assert "There is no wish" in again[2][0]


def test_without_the_sdk_it_is_said_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["mcp", "--home", str(tmp_path), "--url", "http://127.0.0.1:9"]) == 2
    assert "pip install 'openclaw-rl[mcp]'" in capsys.readouterr().err


def test_the_skill_names_the_tools_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mcp", "--skill"]) == 0
    text = capsys.readouterr().out
    assert text == SKILL.read_text()
    assert all(f"`{name}`" in text and hasattr(Tools, name) for name in NAMES)
