"""Terminal tasks with commands to choose from: exactly one of them is right."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from openclaw_rl.envs.tasks import of_split, terminal_tasks
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.types import Message, Task

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="bubblewrap is not installed"
)
MENUS = [task for task in terminal_tasks() if "commands" in task.data]
FIRST = {task.data["template"].rpartition("-")[0]: task for task in reversed(MENUS)}
ONE = [task for task in FIRST.values() if task.data["steps"] == 1]
TWO = [task for task in FIRST.values() if task.data["steps"] > 1]


def run(command: str) -> Message:
    given = {"id": "1", "name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [given]}


async def solved(task: Task, *commands: str) -> bool:
    environment = Terminal()
    await environment.reset(task)
    for command in commands:
        result = await environment.step(run(command))
    outcome = await environment.evaluate()
    await environment.close()
    assert result.done or task.data["steps"] > len(commands)
    return outcome.solved


@pytest.mark.parametrize("task", ONE, ids=lambda task: task.data["template"])
async def test_one_command_is_right_and_the_others_are_not(task: Task) -> None:
    right = [command for command in task.data["commands"] if await solved(task, command)]
    assert len(right) == 1


@pytest.mark.parametrize("task", TWO, ids=lambda task: task.data["template"])
async def test_two_commands_solve_it_in_one_order_only(task: Task) -> None:
    [first] = [command for command in task.data["commands"] if command.startswith("mkdir")]
    [second] = [each for each in task.data["commands"] if each.endswith("/")]
    assert await solved(task, first, second)
    assert not await solved(task, second, first)
    assert not await solved(task, first)


async def test_no_other_command_can_be_run() -> None:
    environment, task = Terminal(), ONE[0]
    seen = await environment.reset(task)
    assert [tool["name"] for tool in seen.tools] == ["run"], "one step needs no word that it is done"
    assert seen.tools[0]["parameters"]["properties"]["command"]["enum"] == task.data["commands"]
    result = await environment.step(run("true; " + task.data["commands"][0]))
    assert "must be one of" in result.observation.messages[0]["content"]
    await environment.close()


def test_every_command_is_right_in_training_and_no_wording_is_in_two_splits() -> None:
    templates = {
        split: {task.data["template"] for task in of_split(MENUS, split)}
        for split in ("train", "validation", "test")
    }
    actions = {split: {name.rpartition("-")[0] for name in found} for split, found in templates.items()}
    assert actions["train"] == actions["validation"] == actions["test"]
    assert not templates["train"] & (templates["validation"] | templates["test"])
    assert not templates["validation"] & templates["test"]
