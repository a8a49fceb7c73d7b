"""A terminal: a shell in a sandbox, a task, and tests that run in another sandbox.

Task folders have the format of terminal-bench or Harbor (``terminal_folders``). For grading, the agent's
files are copied into a fresh sandbox, the task's own tests overwrite them, and only the tests' result
counts: nothing that the agent started, printed or put in place of the tests (``terminal_grade``).
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openclaw_rl.envs.sandbox import Limits, Ran, Sandbox, SandboxGone
from openclaw_rl.envs.tasks import terminal_tasks
from openclaw_rl.envs.terminal_folders import decode_files, read_folder
from openclaw_rl.envs.terminal_grade import grade
from openclaw_rl.envs.tools import call, tool
from openclaw_rl.types import Message, Observation, Outcome, StepResult, Task, Tool

RUN = tool("run", "Runs a command in the shell and gives its output.", command="string")
DONE = tool("done", "Ends the task.")
_SYSTEM = "You work in a Linux shell. Do the task with the tool run; call done when it is done."


class Terminal:
    """``tasks``: a folder of task folders, or one of them; without it, the tasks in this package."""

    def __init__(self, tasks: str = "", max_steps: int = 10, limits: Limits | None = None) -> None:
        self._tasks = read_folder(Path(tasks)) if tasks else terminal_tasks()
        self._max_steps, self._limits = max_steps, limits or Limits()
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._steps = 0
        self._run_tool, self._last_step = RUN, max_steps

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        self._task, self._steps = task, 0
        self._run_tool = choice_of(task.data["commands"]) if task.data.get("commands") else RUN
        self._last_step = min(self._max_steps, task.data.get("steps", self._max_steps))
        self._sandbox = await Sandbox(decode_files(task.data.get("files", {})), self._limits).__aenter__()
        asked: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": task.data["instruction"]},
        ]
        return Observation(asked, self._tools)

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results: list[Message] = []
        for given in action.get("tool_calls") or []:
            read = call({"run": (self._run_tool, lambda command: command), "done": (DONE, lambda: "")}, given)
            if read.valid and read.name == "done":
                return StepResult(Observation([]), done=True)
            said = await self._run(read.arguments["command"]) if read.valid else read.message["content"]
            results.append({**read.message, "content": said})
        if not results:
            results = [{"role": "user", "content": "Call run with a command, or done."}]
        ended = self._steps >= self._last_step or self._sandbox is None
        return StepResult(Observation(results, self._tools), done=ended)

    @property
    def _tools(self) -> list[Tool]:
        """A task of one step needs no word that it is done."""
        return [self._run_tool] if self._last_step == 1 else [self._run_tool, DONE]

    async def _run(self, command: str) -> str:
        if self._sandbox is None:
            return "error: the shell is gone"
        try:
            return shown(await self._sandbox.run(command))
        except SandboxGone as error:  # the agent's command killed it; nothing is left to grade
            await self._leave()
            return f"error: {error}"

    async def evaluate(self) -> Outcome:
        """Run the task's tests on the agent's files in a fresh sandbox."""
        if self._task is None or self._sandbox is None:
            return Outcome(-1.0, False, {"passed": 0, "of": 0, "steps": self._steps})
        try:
            files = await self._sandbox.take(folders=True)
        except (SandboxGone, ValueError, OSError, tarfile.TarError):  # the agent filled or broke the sandbox
            return Outcome(-1.0, False, {"passed": 0, "of": 0, "steps": self._steps})
        outcome = await grade(self._task.data, files, self._limits)
        return replace(outcome, facts={**outcome.facts, "steps": self._steps})

    async def close(self) -> None:
        self._task = None
        await self._leave()

    async def _leave(self) -> None:
        if (sandbox := self._sandbox) is not None:
            self._sandbox = None
            await sandbox.close()


def choice_of(commands: Sequence[str]) -> Tool:
    """``run`` with nothing but these commands."""
    offered = tool("run", "Runs one of the commands and gives its output.", command="string")
    offered["parameters"]["properties"]["command"]["enum"] = list(commands)
    return offered


def shown(ran: Ran) -> str:
    """A command's output as the agent sees it."""
    if ran.timed_out:
        return f"{ran.output}\n[it took too long and was ended]".strip()
    return ran.output if ran.code == 0 and ran.output else f"{ran.output}\n[exit code {ran.code}]".strip()
