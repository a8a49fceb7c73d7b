"""What is shown of environments: logs that are cut off, replays that are somebody's, and forgetting them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.commands.train import key_of
from openclaw_rl.envs.groups import roll_out_groups
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.replay import KEPT, Replay
from openclaw_rl.envs.rollout import Agent
from openclaw_rl.envs.toolcall import ToolCalls
from openclaw_rl.processes.environments import list_environments, read_replay
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.types import Observation, Outcome, Task

ROW = {"id": "sum", "prompt": "2 and 3?", "answer": "5", "tools": ["add"], "one_call": True}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    made = scripted_system(tmp_path / "home")
    yield made
    await made.close()


async def at_once() -> None:
    """Nothing holds agents back."""


async def episode(system: ServingSystem, tmp_path: Path) -> str:
    """One solved attempt, as ``train`` makes it; its session."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(ROW))
    assert isinstance(system.engine, ScriptedEngine)
    system.engine.say('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>')
    home = system.config.home
    agent = Agent("http://test/v1", key_of(home, "toolcall"), replays=home / "train" / "toolcall" / "replays")
    pool, transport = Pool(lambda: ToolCalls(str(file)), 1), httpx.ASGITransport(system.app())
    tasks = ToolCalls(str(file)).tasks()
    [group] = [g async for g in roll_out_groups(agent, pool, tasks, 1, 1, at_once, transport)]
    await pool.close()
    await system.gateway.drain()
    system.ledgers.policies.rollouts().pull()
    return group.episodes[0].session_id


def client(system: ServingSystem, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://test", headers=headers
    )


async def test_a_replay_is_its_owners_and_goes_with_its_session(
    system: ServingSystem, tmp_path: Path
) -> None:
    session = await episode(system, tmp_path)
    path = f"/v1/environments/toolcall/attempts/{session}"
    other = client(system, system.keys.add("ada"))
    agent, owner = client(system, key_of(system.config.home, "toolcall")), client(system, _key(system))
    for http, status in ((other, 404), (agent, 200), (owner, 200)):
        assert (await http.get(path)).status_code == status
    assert (await other.get("/v1/environments/toolcall/attempts")).status_code == 404
    found = (await owner.get(path)).json()
    assert found["outcome"] == {
        "score": 1.0, "solved": True, "facts": {"steps": 1, "calls": 1, "valid": 1},
    }  # fmt: skip
    assert [step["action"] is None for step in found["steps"]] == [True, False]
    assert found["steps"][0]["seen"][-1]["content"] == "2 and 3?"
    [listed] = (await owner.get("/v1/environments/toolcall/attempts")).json()["data"]
    assert (listed["session_id"], listed["reward"], listed["failure"]) == (session, 1.0, "")
    assert (await owner.delete(f"/v1/sessions/{session}")).status_code == 200
    assert (await owner.get(path)).status_code == 404
    assert list((system.config.home / "train").glob("*/replays/*")) == []
    for http in (other, agent, owner):
        await http.aclose()


def _key(system: ServingSystem) -> str:
    return system.keys.key_of("default") or ""


async def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(
    system: ServingSystem, tmp_path: Path
) -> None:
    await episode(system, tmp_path)
    log = system.config.home / "train" / "toolcall" / "log.jsonl"
    look: dict[str, Any] = {"type": "evaluation", "at": 1.0, "groups": 5, "version": 2, "solved": 3, "of": 4}
    log.write_text(json.dumps({**look, "low": 0.3, "high": 0.9}) + '\n{"type": "evalua')
    [found] = list_environments(system.config.home, system.ledgers.policies, None)
    assert [(each["groups"], each["low"]) for each in found["evaluations"]] == [(5, 0.3)]
    assert found["utilisation"] is None, "no run has come to its end"
    assert (found["solved"], found["of"]) == (1, 1)
    assert found["low"] == pytest.approx(0.207, abs=0.001)


def test_a_replay_is_found_by_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    for name, session in ((".", "secret"), ("..", "secret"), ("x/../..", "env-" + "0" * 32), ("", "")):
        assert read_replay(tmp_path, name, session) is None


def test_the_newest_replays_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        replay = Replay(Task("t"))
        replay.add(None, Observation([{"role": "user", "content": [{"type": "text", "text": "hi"}, {}]}]))
        replay.write(tmp_path, f"env-{number:032x}", Outcome(1.0, True), "", "")
    assert len(list(tmp_path.iterdir())) == KEPT
    assert (tmp_path / f"env-{KEPT + 2:032x}.json").exists()
