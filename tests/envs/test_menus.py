"""Terminal tasks with commands to choose from: exactly one of them is right."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest

from openclaw_rl.envs.sandbox import Sandbox
from openclaw_rl.envs.tasks import of_split, terminal_tasks
from openclaw_rl.envs.terminal import Terminal
from openclaw_rl.types import Message, Task

needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="bubblewrap is not installed"
)
MENUS = [task for task in terminal_tasks() if "commands" in task.data]
ONE = [task for task in MENUS if task.data["steps"] == 1]
TWO = [task for task in MENUS if task.data["steps"] > 1]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as made:
        yield made


_NUMBERS = count()


async def solvers(sandbox: Sandbox, task: Task, tries: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The tries that pass the task's checks, each in a folder of its own with the task's files."""
    script = []
    for number, commands in enumerate(tries):
        script += [f"mkdir ~/{next(_NUMBERS)}", "cd $_"]
        for name, text in task.data["files"].items():
            script += [f"cat > {name} <<'END'", f"{text}END"]
        script += [*commands, f"{' && '.join(task.data['checks'])} && echo passed {number}"]
    lines = (await sandbox.run("exec 2>/dev/null\n" + "\n".join(script))).output.splitlines()
    return [tries[int(line.split()[1])] for line in lines if line.startswith("passed")]


@needs_sandbox
async def test_one_command_is_right_and_the_others_are_not(sandbox: Sandbox) -> None:
    for task in ONE[::17]:
        tries = [[command] for command in task.data["commands"]]
        assert len(await solvers(sandbox, task, tries)) == 1, task.id


@needs_sandbox
async def test_two_commands_solve_it_in_one_order_only(sandbox: Sandbox) -> None:
    for task in TWO[::17]:
        [first] = [command for command in task.data["commands"] if command.startswith("mkdir")]
        [second] = [each for each in task.data["commands"] if each.endswith("/")]
        tries = [[first, second], [second, first], [first], [second]]
        assert await solvers(sandbox, task, tries) == tries[:1], task.id


def run(command: str) -> Message:
    given = {"id": "1", "name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": "", "tool_calls": [given]}


@needs_sandbox
async def test_no_other_command_can_be_run_and_one_ends_the_task() -> None:
    environment, task = Terminal(), ONE[0]
    seen = await environment.reset(task)
    assert [tool["name"] for tool in seen.tools] == ["run"], "one step needs no word that it is done"
    assert seen.tools[0]["parameters"]["properties"]["command"]["enum"] == task.data["commands"]
    result = await environment.step(run("true; " + task.data["commands"][0]))
    assert "must be one of" in result.observation.messages[0]["content"]
    assert result.done
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
