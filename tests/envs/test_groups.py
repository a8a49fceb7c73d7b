"""Groups of attempts: rewards reach the ledger, failures are told apart, a run goes on where it was."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.events import REWARD
from openclaw_rl.commands.cli import main
from openclaw_rl.commands.train import RunLog, Training, TrainPlan, compared, key_of, read_plan, report
from openclaw_rl.envs import EnvironmentParts
from openclaw_rl.envs.groups import Group, roll_out_groups
from openclaw_rl.envs.pool import Pool
from openclaw_rl.envs.rollout import Agent
from openclaw_rl.envs.toolcall import ToolCalls
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.types import Capabilities, Environment, Message, StepResult

SUM = {"tools": ["add"], "one_call": True}
ROWS = [
    *({"id": f"t{n}", "prompt": f"What is {n} plus 3?", "answer": str(n + 3), **SUM} for n in range(3)),
    {"id": "v", "prompt": "1 and 1?", "answer": "2", "split": "validation", **SUM},
]


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    made = scripted_system(tmp_path / "home")
    yield made
    await made.close()


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return str(file)


def says(system: ServingSystem, *sums: tuple[int, int]) -> None:
    assert isinstance(system.engine, ScriptedEngine)
    for a, b in sums:
        call = json.dumps({"name": "add", "arguments": {"a": a, "b": b}})
        system.engine.say(f"<tool_call>\n{call}\n</tool_call>")


async def at_once() -> None:
    """Nothing holds agents back."""


def transport(system: ServingSystem) -> httpx.ASGITransport:
    return httpx.ASGITransport(system.app())


async def roll(system: ServingSystem, make: Callable[[], Environment], number: int = 1) -> list[Group]:
    agent = Agent("http://test/v1", key_of(system.config.home, "toolcall"))
    pool = Pool(make, 1)
    given = make().tasks()[:number]
    found = [g async for g in roll_out_groups(agent, pool, given, 2, 1, at_once, transport(system))]
    await pool.close()
    await system.gateway.drain()
    return found


def rewards(system: ServingSystem, group: Group) -> list[dict[str, Any]]:
    ledger = system.ledgers.serve
    events = [e for each in group.episodes for t in each.turn_ids for e in ledger.events_of(t)]
    return [event.data for event in events if event.kind == REWARD]


async def test_a_complete_group_tells_its_rewards(system: ServingSystem, tasks: str) -> None:
    says(system, (0, 3), (0, 4))
    [group] = await roll(system, lambda: ToolCalls(tasks))
    assert (group.solved, group.failure) == (1, "")
    found = rewards(system, group)
    assert [each["reward"] for each in found] == [1.0, -0.8]
    assert {(each["group"], each["size"], each["scope"]) for each in found} == {(group.id, 2, "env:toolcall")}


class Broken(ToolCalls):
    """Raises from its second episode on."""

    steps = 0

    async def step(self, action: Message) -> StepResult:
        Broken.steps += 1
        if Broken.steps > 1:
            raise OSError("no space left")
        return await super().step(action)


async def test_an_environment_that_breaks_is_told_as_such(system: ServingSystem, tasks: str) -> None:
    Broken.steps = 0
    says(system, (0, 3), (0, 3), (0, 3))
    [group] = await roll(system, lambda: Broken(tasks))
    assert group.failure == "environment"
    found = rewards(system, group)
    assert sorted((each["reward"] is None, each["failure"]) for each in found) == [
        (False, ""),
        (True, "environment"),
    ]


async def test_who_failed_before_the_first_reply_is_told_by_the_others(
    system: ServingSystem, tasks: str
) -> None:
    class Closed(ToolCalls):
        """Cannot even begin, every other time."""

        async def reset(self, task: Any) -> Any:
            Broken.steps += 1
            if Broken.steps > 1:
                raise OSError("no space left")
            return await super().reset(task)

    Broken.steps = 0
    says(system, (0, 3))
    [group] = await roll(system, lambda: Closed(tasks))
    [found] = rewards(system, group)
    assert (found["reward"], found["failure"], found["size"]) == (None, "environment", 1)


def options(**given: Any) -> argparse.Namespace:
    known = {
        "env": "toolcall", "tasks": "", "parallel": 0, "attempts": 2, "groups": 0, "minutes": 0.0,
        "max_steps": 0, "eval_every": 0, "eval_tasks": 100, "task_seed": 0, "free": False, "quick": False,
        "pool": "local", "difficulty": None, "temperature": 0.8,
    }  # fmt: skip
    return argparse.Namespace(**{**known, **given})


def plan(tasks: str, **given: Any) -> TrainPlan:
    return read_plan(options(tasks=tasks, parallel=1, **given), {})


async def test_a_run_is_logged_and_goes_on_where_it_was(
    system: ServingSystem, tasks: str, tmp_path: Path
) -> None:
    log, key = RunLog(tmp_path / "train" / "log.jsonl"), key_of(system.config.home, "toolcall")
    first = plan(tasks, groups=1)
    asked = [task.id for task in plan(tasks).curriculum([]).tasks(0, 3)]
    assert sorted(asked) == ["t0", "t1", "t2"]
    says(system, (1, 1), (9, 9), (9, 9), (1, 1))  # held out, two attempts, held out
    await Training(first, "http://test/v1", key, log, transport(system)).run()
    assert [row["task"] for row in log.of("group")] == asked[:1]
    assert [(row["solved"], row["of"]) for row in log.of("evaluation")] == [(1, 1), (1, 1)]
    says(system, *((9, 9),) * 4, (1, 1))
    await Training(plan(tasks, groups=3), "http://test/v1", key, log, transport(system)).run()
    assert [row["task"] for row in log.of("group")] == asked, "none twice"
    said = report(first, log)
    assert "3 groups of 2" in said
    assert "1 of 1 solved" in said
    assert "by cause: model 6" in said


async def test_held_out_tasks_are_tried_on_a_schedule(
    system: ServingSystem, tasks: str, tmp_path: Path
) -> None:
    log, key = RunLog(tmp_path / "log.jsonl"), key_of(system.config.home, "toolcall")
    says(system, *((1, 1),) * 20)
    await Training(plan(tasks, groups=3, eval_every=2), "http://test/v1", key, log, transport(system)).run()
    looks = log.of("evaluation")
    assert [row["groups"] for row in looks] == [0, 2, 3]
    assert all(row["low"] < row["solved"] / row["of"] <= row["high"] for row in looks)
    await Training(plan(tasks, groups=4, eval_every=2), "http://test/v1", key, log, transport(system)).run()
    assert [row["groups"] for row in log.of("evaluation")] == [0, 2, 3, 4], "the last of them once"
    assert plan(tasks, eval_every=None).eval_every == 50
    assert plan(tasks, eval_every=None, quick=True).eval_every == 0


async def test_an_engine_without_grammars_is_not_asked_to_force_calls(
    system: ServingSystem, tasks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system.engine.capabilities = Capabilities()
    log, key = RunLog(tmp_path / "log.jsonl"), key_of(system.config.home, "toolcall")
    says(system, *((1, 1),) * 20)
    await Training(plan(tasks, groups=1), "http://test/v1", key, log, transport(system)).run()
    assert [row["failures"] for row in log.of("group")] == [{"model": 2}], "tried, and not refused"
    assert log.of("evaluation")[0]["solved"] == 1
    assert "follows no grammars" in capsys.readouterr().err


async def test_held_out_success_is_filed_under_the_version_it_began_with(
    system: ServingSystem, tasks: str, tmp_path: Path
) -> None:
    """Training goes on meanwhile: what it has made by the end answered at most some of them."""
    log, key = RunLog(tmp_path / "log.jsonl"), key_of(system.config.home, "toolcall")
    training = Training(plan(tasks), "http://test/v1", key, log, transport(system))
    versions = iter([3, 5])

    async def status() -> dict[str, Any]:
        return {"policy_version": next(versions)}

    training._status = status  # type: ignore[method-assign]
    says(system, (1, 1))
    await training.evaluate(7)
    [row] = log.of("evaluation")
    assert (row["version"], row["last_version"], row["groups"]) == (3, 5, 7)
    assert "versions 3 to 5" in report(training.plan, log)


async def test_agents_wait_for_a_learner_that_is_behind(
    system: ServingSystem, tasks: str, tmp_path: Path
) -> None:
    """The server is asked before each group, and asked again while too much waits: samples, and attempts
    that the learner has not compared yet, because it judges or trains."""
    key, log = key_of(system.config.home, "toolcall"), RunLog(tmp_path / "log.jsonl")
    training = Training(plan(tasks), "http://test/v1", key, log, transport(system))
    queues, seen = [(70, 0), (40, 30), (0, 64), (40, 20)], []

    async def status() -> dict[str, Any]:
        samples, attempts = queues[len(seen)]
        seen.append((samples, attempts))
        return {"queues": {"samples": samples, "attempts": attempts, "samples_per_step": 32}}

    training._status = status  # type: ignore[method-assign]
    await training._may_start()
    assert seen == queues


async def test_attempts_that_go_alike_are_not_waited_for(
    system: ServingSystem, tasks: str, tmp_path: Path
) -> None:
    key, log = key_of(system.config.home, "toolcall"), RunLog(tmp_path / "log.jsonl")
    training = Training(plan(tasks), "http://test/v1", key, log, transport(system))
    training._yields.extend([0.0] * 20)
    looks = 0

    async def status() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return {"queues": {"samples": 0, "attempts": 255, "samples_per_step": 32}}

    training._status = status  # type: ignore[method-assign]
    await training._may_start()
    assert looks == 1, "the next attempts begin at once"


async def test_the_status_counts_attempts_that_wait_for_their_group(
    system: ServingSystem, tasks: str
) -> None:
    says(system, (0, 3), (0, 4))
    await roll(system, lambda: ToolCalls(tasks))
    key = key_of(system.config.home, "toolcall")
    async with httpx.AsyncClient(transport=transport(system), base_url="http://test") as http:
        status = (await http.get("/v1/status", headers={"authorization": f"Bearer {key}"})).json()
    assert status["queues"]["attempts"] == 2


def test_only_tasks_that_are_easy_enough_are_tried(tasks: str) -> None:
    rows = [{**row, "difficulty": number} for number, row in enumerate(ROWS)]
    Path(tasks).write_text("\n".join(map(json.dumps, rows)))
    assert [task.id for task in plan(tasks, difficulty=1).train] == ["t0", "t1"]
    assert plan(tasks, difficulty=1).held_out == []
    assert len(plan(tasks, difficulty=3).held_out) == 1
    with pytest.raises(ValueError, match="none that is so easy"):
        plan(tasks, difficulty=-1)


def test_a_file_without_splits_has_held_out_tasks(tasks: str) -> None:
    rows = [{"prompt": f"What is {n} plus 3?", "answer": str(n + 3)} for n in range(100)]
    Path(tasks).write_text("\n".join(map(json.dumps, rows)))
    assert plan(tasks).held_out
    assert plan(tasks).held_out == plan(tasks).held_out
    assert not {task.id for task in plan(tasks).held_out} & {task.id for task in plan(tasks).train}
    assert "held out" not in plan(tasks).notice


def test_a_run_without_held_out_tasks_says_so(tasks: str) -> None:
    Path(tasks).write_text(json.dumps({**ROWS[0], "split": "train"}))
    assert "no task is held out" in plan(tasks).notice


def test_the_references_variables_work(tasks: str) -> None:
    variables = {"ENV_TYPE": "toolcall", "MAX_STEPS": "5", "PARALLEL_ENVS": "3"}
    found = read_plan(options(env=None, tasks=tasks), variables)
    assert (found.env, found.parallel, found.parts) == ("toolcall", 3, EnvironmentParts(tasks, 5, True))
    assert read_plan(options(tasks=tasks, parallel=2), variables).parallel == 2, "a flag comes first"


def test_a_tool_config_names_tools(tasks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tools.json"
    file.write_text('["add", "length"]')
    monkeypatch.setenv("TOOLS_CONFIG", str(file))
    assert ToolCalls(tasks).offered == ["add", "length"]
    file.write_text('{"no": "list"}')
    with pytest.raises(ValueError, match="a JSON list of tools"):
        ToolCalls(tasks)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which environment?"),
        (["--env", "toolcal"], "known: toolcall"),
        (["--env", "toolcall", "--attempts", "1"], "--attempts 2 or more"),
        (["--env", "toolcall", "--temperature", "0"], "--temperature is 0; it must be above 0"),
        (["--env", "toolcall", "--temperature", "3"], "--temperature is 3; it must be above 0 and at most 2"),
    ],
)
def test_mistakes_are_said_before_anything_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["train", *arguments, "--home", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_a_rise_is_told_from_chance() -> None:
    before, after = {"solved": 10, "of": 40}, {"solved": 28, "of": 40}
    assert compared(before, after) == "0.25 -> 0.70 (p = 0.000)"
    assert compared(before, {"solved": 12, "of": 40}) == "0.25 -> 0.30 (p = 0.617)"
    assert compared({"solved": 0, "of": 0}, after) == "unknown"


def test_an_environments_key_is_made_once(tmp_path: Path) -> None:
    assert key_of(tmp_path, "maze") == key_of(tmp_path, "maze")
