"""Episodes through the public API: sessions in the ledger, and whose fault it was."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.commands.cli import main
from openclaw_rl.envs.fit import fit_agent
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent, Episode, roll_out
from openclaw_rl.envs.toolcall import ToolCalls
from openclaw_rl.evals.env.interval import interval
from openclaw_rl.evals.env.plan import evaluate, read_plan, summary, table
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.types import Capabilities, Environment, Message, Outcome, StepResult, Task

ROW = {"prompt": "What is 2 plus 3?", "answer": "5", "tools": ["add"]}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    made = scripted_system(tmp_path / "home")
    yield made
    await made.close()


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], ToolCalls]:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(ROW))
    return lambda: ToolCalls(str(file), max_steps=3)


def says(system: ServingSystem, *calls: tuple[str, dict[str, Any]]) -> None:
    assert isinstance(system.engine, ScriptedEngine)
    for name, arguments in calls:
        call = json.dumps({"name": name, "arguments": arguments})
        system.engine.say(f"<tool_call>\n{call}\n</tool_call>")


async def run(system: ServingSystem, make: Callable[[], Environment], attempts: int = 1) -> list[Episode]:
    agent = Agent("http://test/v1", system.keys.key_of("default") or "")
    pool = Pool(make, 1)
    tasks = [(make().tasks()[0], n) for n in range(attempts)]
    transport = httpx.ASGITransport(system.app())
    found = [episode async for episode in roll_out(agent, pool, tasks, 1, transport)]
    await pool.close()
    await system.gateway.drain()
    return found


async def test_an_episode_is_a_session_with_exact_turns(system: ServingSystem, make: Any) -> None:
    says(system, ("add", {"a": 2, "b": 3}), ("answer", {"answer": "5"}))
    [episode] = await run(system, make)
    assert episode.solved
    assert episode.failure == ""
    ledger = system.ledgers.serve
    turns = [ledger.load_turn(turn_id) for turn_id in episode.turn_ids]
    assert len(turns) == 2
    assert all(turn is not None and turn.session_id == episode.session_id for turn in turns)
    first, second = turns
    assert first is not None
    assert second is not None
    assert second.continues == first.id
    assert second.messages[-1]["role"] == "tool"
    assert second.messages[-1]["content"] == "5", "the tool's result is the first turn's next state"
    replied = [token.id for token in first.tokens]
    assert second.prompt_ids[len(first.prompt_ids) :][: len(replied)] == replied, "exactly as it was sampled"


async def test_what_followed_the_last_action_is_told(system: ServingSystem, tmp_path: Path) -> None:
    """No further request shows it, and the judge needs it."""
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({**ROW, "one_call": True}))
    says(system, ("add", {"a": 2, "b": 3}))
    [episode] = await run(system, lambda: ToolCalls(str(file)))
    assert episode.solved
    ledgers = system.ledgers
    queue = LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=1e12)
    queue.pull()
    assert queue.ready(9, 1e12) == episode.turn_ids
    case = queue.case(episode.turn_ids[0])
    assert case is not None
    assert case.next_state is not None
    assert [(each["role"], each["content"]) for each in case.next_state] == [("tool", "5")]


async def test_a_wrong_answer_is_the_models(system: ServingSystem, make: Any) -> None:
    says(system, ("answer", {"answer": "6"}))
    [episode] = await run(system, make)
    assert (episode.solved, episode.failure) == (False, "model")


async def test_steps_run_out(system: ServingSystem, make: Any) -> None:
    says(system, *(("add", {"a": 1, "b": 1}),) * 5)
    [episode] = await run(system, make)
    assert len(episode.turn_ids) == 3
    assert episode.failure == "model"
    assert episode.outcome is not None
    assert episode.outcome.score == -1.0, "nothing was answered"


class Broken(ToolCalls):
    """Raises at the first step, as often as it is told."""

    failures = 0

    async def step(self, action: Message) -> StepResult:
        if Broken.failures:
            Broken.failures -= 1
            raise OSError("no space left")
        return await super().step(action)


async def test_the_environments_fault_is_tried_again_and_never_the_models(
    system: ServingSystem, make: Any, tmp_path: Path
) -> None:
    broken = lambda: Broken(str(tmp_path / "tasks.jsonl"), max_steps=3)  # noqa: E731
    Broken.failures = 1
    says(system, *(("answer", {"answer": "5"}),) * 2)
    [episode] = await run(system, broken)
    assert episode.solved
    Broken.failures = 9
    says(system, *(("answer", {"answer": "5"}),) * 2)
    [episode] = await run(system, broken)
    assert (episode.outcome, episode.failure) == (None, "environment")
    assert "no space left" in episode.reason
    Broken.failures = 0


async def test_a_server_that_refuses_is_no_fault_of_the_model(system: ServingSystem, make: Any) -> None:
    agent = Agent("http://test/v1", "wrong")
    pool = Pool(make, 1)
    transport = httpx.ASGITransport(system.app())
    [episode] = [e async for e in roll_out(agent, pool, [(make().tasks()[0], 0)], 1, transport)]
    assert (episode.outcome, episode.failure) == (None, "server")
    assert "401" in episode.reason
    await pool.close()


class Slow(ToolCalls):
    """Takes longer than its lease."""

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(0.3)
        return await super().step(action)


async def test_a_lease_that_expires_is_a_time_out(system: ServingSystem, make: Any, tmp_path: Path) -> None:
    says(system, *(("add", {"a": 1, "b": 1}),) * 5)
    agent = Agent("http://test/v1", system.keys.key_of("default") or "")
    pool = Pool(lambda: Slow(str(tmp_path / "tasks.jsonl"), max_steps=3), 1, episode_seconds=0.2)
    transport = httpx.ASGITransport(system.app())
    [episode] = [e async for e in roll_out(agent, pool, [(make().tasks()[0], 0)], 1, transport)]
    await pool.close()
    assert (episode.outcome, episode.failure) == (None, "time-out")
    assert "lease" in episode.reason


async def test_a_server_that_stays_busy_is_given_up(make: Any) -> None:
    asked = []

    def busy(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(429, headers={"retry-after": "0.01"}, json={"error": {"message": "busy"}})

    agent, pool = Agent("http://test/v1", "", seconds=0.5), Pool(make, 1)
    transport = httpx.MockTransport(busy)
    [episode] = [e async for e in roll_out(agent, pool, [(make().tasks()[0], 0)], 1, transport)]
    await pool.close()
    assert (episode.outcome, episode.failure) == (None, "server")
    assert "429" in episode.reason
    assert len(asked) > 2


async def test_pictures_for_a_model_that_reads_text_are_refused_at_the_start(
    system: ServingSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("http://test/v1", system.keys.key_of("default") or "")
    transport = httpx.ASGITransport(system.app())
    monkeypatch.setenv("SCREENSHOT_BACKEND", "screenshot")
    with pytest.raises(ValueError, match="SCREENSHOT_BACKEND=tree"):
        await fit_agent(agent, "gui", transport)
    assert await fit_agent(agent, "terminal", transport) == agent
    monkeypatch.setenv("SCREENSHOT_BACKEND", "tree")
    assert await fit_agent(agent, "gui", transport) == agent


async def test_calls_are_forced_only_where_the_engine_can(
    system: ServingSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent("http://test/v1", system.keys.key_of("default") or "")
    transport = httpx.ASGITransport(system.app())
    assert (await fit_agent(agent, "toolcall", transport)).force_calls
    system.engine.capabilities = Capabilities()
    assert not (await fit_agent(agent, "toolcall", transport)).force_calls
    assert "follows no grammars" in capsys.readouterr().err
    free = replace(agent, force_calls=False)
    assert await fit_agent(free, "toolcall", transport) == free
    assert capsys.readouterr().err == "", "who did not ask for it need not be told"
    elsewhere = httpx.MockTransport(lambda request: httpx.Response(404))
    assert await fit_agent(agent, "toolcall", elsewhere) == agent, "another server, of which nothing is known"


async def test_an_evaluation_is_read_from_flags_and_variables(
    system: ServingSystem, make: Any, tmp_path: Path
) -> None:
    make()
    variables = {"ENV_TYPE": "toolcall", "MAX_STEPS": "2", "PARALLEL_ENVS": "3"}
    known = {"env": None, "tasks": str(tmp_path / "tasks.jsonl"), "max_steps": 0, "parallel": None}
    known |= {"split": "all", "limit": None, "attempts": 1, "free": False, "pool": "local"}
    found = read_plan(argparse.Namespace(**known), variables)
    assert (found.env, found.parallel, found.parts.max_steps) == ("toolcall", 3, 2)
    assert read_plan(argparse.Namespace(**{**known, "parallel": 1}), variables).parallel == 1
    assert read_plan(argparse.Namespace(**known), {"ENV_TYPE": "toolcall"}).parallel == 1
    says(system, *(("add", {"a": 1, "b": 1}),) * 5)
    key = system.keys.key_of("default") or ""
    [episode] = await evaluate(found, "http://test", key, httpx.ASGITransport(system.app()))
    assert len(episode.turn_ids) == 2, "MAX_STEPS"


def test_a_pool_that_there_is_not_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--env", "toolcall", "--pool", "moon", "--home", str(tmp_path)]
    assert main(["eval", "env", *given]) == 2
    assert "there is no pool 'moon'" in capsys.readouterr().err


def episode(solved: bool | None, failure: Any = "", template: str = "sum") -> Episode:
    outcome = None if solved is None else Outcome(1.0 if solved else -1.0, solved)
    return Episode(Task("t", {"template": template}), 0, "s", outcome, failure)


def test_what_is_not_known_is_not_counted() -> None:
    found = [
        episode(True),
        episode(False, "model"),
        episode(None, "environment"),
        episode(True, template="b"),
    ]
    facts = summary(found)
    assert (facts["solved"], facts["of"]) == (2, 3)
    assert facts["failures"] == {"model": 1, "environment": 1}
    assert facts["by"] == {"sum": 0.5, "b": 1.0}
    assert "2 of 3 solved" in table("toolcall", found)


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (0, 0, 0, 1)]
)
def test_intervals(hits: int, of: int, low: float, high: float) -> None:
    assert interval(hits, of) == pytest.approx((low, high), abs=0.001)


def test_a_split_without_tasks_is_refused_with_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({**ROW, "split": "train"}))
    assert main(["eval", "env", "--env", "toolcall", "--tasks", str(file), "--home", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "no tasks of the split test" in said
    assert "train 1" in said
    assert "--split all" in said


def test_mistakes_are_said_before_anything_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "env", "--home", str(tmp_path)]) == 2
    assert "which environment?" in capsys.readouterr().err
    assert main(["eval", "env", "--env", "toolcal", "--home", str(tmp_path)]) == 2
    assert "known: toolcall, terminal" in capsys.readouterr().err
