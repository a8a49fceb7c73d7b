"""A terminal: a shell in a sandbox, a task, and tests that run elsewhere.

Task folders are read as terminal-bench (``task.yaml``, ``run-tests.sh``, ``tests/``) and Harbor
(``instruction.md``, ``tests/test.sh``) have them. The agent's files are carried into a fresh sandbox, the
task's own tests are laid over them, and only what those say counts: nothing that the agent started, printed
or put in the tests' place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_rl.envs.sandbox import Limits, Ran, Sandbox, SandboxGone
from openclaw_rl.envs.tasks import terminal_tasks
from openclaw_rl.envs.tools import call, tool
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task

RUN = tool("run", "Runs a command in the shell and gives its output.", command="string")
DONE = tool("done", "Ends the task.")
_SYSTEM = "You work in a Linux shell. Do the task with the tool run; call done when it is done."
_TEST_SECONDS = 60.0
#: Of a task's folder, what is not for the agent to see.
_HIDDEN = (
    "tests/",
    "run-tests.sh",
    "task.yaml",
    "task.toml",
    "instruction.md",
    "solution",
    "Dockerfile",
    "docker-compose",
)


class Terminal:
    """``tasks``: a folder of task folders, or one of them; without it, those that come with the package."""

    def __init__(self, tasks: str = "", max_steps: int = 10, limits: Limits | None = None) -> None:
        self._tasks = read_folder(Path(tasks)) if tasks else terminal_tasks()
        self._max_steps, self._limits = max_steps, limits or Limits()
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._steps = 0

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        self._task, self._steps = task, 0
        self._sandbox = await Sandbox(_files(task.data.get("files", {})), self._limits).__aenter__()
        asked: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": task.data["instruction"]},
        ]
        return Observation(asked, [RUN, DONE])

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results: list[Message] = []
        for given in action.get("tool_calls") or []:
            read = call({"run": (RUN, lambda command: command), "done": (DONE, lambda: "")}, given)
            if read.valid and read.name == "done":
                return StepResult(Observation([]), done=True)
            said = await self._run(read.arguments["command"]) if read.valid else read.message["content"]
            results.append({**read.message, "content": said})
        if not results:
            results = [{"role": "user", "content": "Call run with a command, or done."}]
        ended = self._steps >= self._max_steps or self._sandbox is None
        return StepResult(Observation(results, [RUN, DONE]), done=ended)

    async def _run(self, command: str) -> str:
        if self._sandbox is None:
            return "error: the shell is gone"
        try:
            return shown(await self._sandbox.run(command))
        except SandboxGone as error:  # its own doing: there is nothing left to judge
            await self._leave()
            return f"error: {error}"

    async def evaluate(self) -> Outcome:
        """In a fresh sandbox, with the agent's files and the task's tests over them."""
        if self._task is None or self._sandbox is None:
            return Outcome(-1.0, False, {"passed": 0, "of": 0, "steps": self._steps})
        data = self._task.data
        try:
            files = await self._sandbox.take(folders=True)
        except (SandboxGone, ValueError, OSError):  # it filled the place up, or broke the shell
            return Outcome(-1.0, False, {"passed": 0, "of": 0, "steps": self._steps})
        async with Sandbox(files | _files(data.get("tests", {})), self._limits) as fresh:
            checks = data.get("checks") or ["bash run-tests.sh"]
            passed = [(await fresh.run(check, _TEST_SECONDS)).code == 0 for check in checks]
        share = sum(passed) / len(passed)
        facts: Json = {"passed": sum(passed), "of": len(passed), "steps": self._steps}
        return Outcome(2 * share - 1, share == 1, facts)

    async def close(self) -> None:
        self._task = None
        await self._leave()

    async def _leave(self) -> None:
        if (sandbox := self._sandbox) is not None:
            self._sandbox = None
            await sandbox.close()


def shown(ran: Ran) -> str:
    """A command's output, as the next state."""
    if ran.timed_out:
        return f"{ran.output}\n[it took too long and was ended]".strip()
    return ran.output if ran.code == 0 and ran.output else f"{ran.output}\n[exit code {ran.code}]".strip()


def read_folder(path: Path) -> list[Task]:
    """The tasks in a folder; ValueError that says what a task folder holds."""
    folders = (
        [path] if _instruction(path) else sorted(p for p in path.iterdir() if p.is_dir() and _instruction(p))
    )
    if not folders:
        raise ValueError(
            f"{path} holds no task: a folder with task.yaml (instruction: …) or instruction.md, and tests"
        )
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> Task:
    every = {
        str(f.relative_to(folder)): f.read_text("utf-8", "replace") for f in folder.rglob("*") if f.is_file()
    }
    tests = {
        name: text for name, text in every.items() if name.startswith("tests/") or name == "run-tests.sh"
    }
    seen = {name: text for name, text in every.items() if not name.startswith(_HIDDEN)}
    files = {name.removeprefix("environment/"): text for name, text in seen.items()}
    check = "bash run-tests.sh" if "run-tests.sh" in tests else "bash tests/test.sh"
    data: Json = {"instruction": _instruction(folder), "files": files, "tests": tests, "checks": [check]}
    return Task(folder.name, data)


def _instruction(folder: Path) -> str:
    if (folder / "instruction.md").is_file():
        return (folder / "instruction.md").read_text(encoding="utf-8").strip()
    if (folder / "task.yaml").is_file():
        import yaml  # transformers brings it

        found: Any = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        return str(found.get("instruction", "")).strip() if isinstance(found, dict) else ""
    return ""


def _files(texts: dict[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}
