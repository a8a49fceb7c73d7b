"""Software engineering: a repository with a bug, a shell to fix it with, and tests the agent cannot reach.

After each action the agent sees the output and, if files have changed, the diff so far and the linter's
report. Only source files count: they are copied into a clean checkout, where the tests and everything that
decides how they run are the task's own.

Rows are SWE-bench's (``repo``, ``base_commit``, ``problem_statement``, ``FAIL_TO_PASS``, ``PASS_TO_PASS``,
``test_patch``; JSON or JSONL). Beside their file, clones are in ``repos/OWNER__NAME``, and the packages that
their tests import in ``packages/OWNER__NAME`` (``pip install --target``).
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.envs.sandbox import Limits, Sandbox, SandboxGone, python_path
from openclaw_rl.envs.swe_grade import carried, check_pytest, passed
from openclaw_rl.envs.swe_tasks import swe_tasks
from openclaw_rl.envs.terminal import DONE, shown
from openclaw_rl.envs.tools import Called, call, tool
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task, Tool

BASH = tool("bash", "Runs a command in the repository and gives its output.", command="string")
LINE = tool("replace_line", "Replaces one line of the file.", line="integer", text="string")
_SYSTEM = "You fix bugs in a repository. Look at the code, change it, and call done."
_LINT = (Path(__file__).with_name("in_sandbox") / "lint.py").read_text(encoding="utf-8")
_MARK = "git add -AN . 2>/dev/null; git diff --no-color --no-ext-diff"


class SoftwareEngineering:
    """``tasks``: a file of SWE-bench rows; without one, the tasks in this package."""

    def __init__(self, tasks: str = "", max_steps: int = 20, limits: Limits | None = None) -> None:
        self._tasks = read_rows(Path(tasks)) if tasks else list(swe_tasks())
        self._max_steps = max_steps
        self._limits = limits or (Limits(30, 4096, 128, 512) if tasks else Limits())
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._base: dict[str, bytes] = {}
        self._steps, self._commit, self._diff = 0, "", ""

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        self._base = await asyncio.to_thread(_checkout, task.data)
        self._steps, self._diff = 0, ""
        self._sandbox = await self._begin(task, self._base)
        as_base = "git -c user.name=base -c user.email=base commit -qm base"
        ran = await self._sandbox.run(f"git init -q && git add -A && {as_base} && git rev-parse HEAD", 60)
        if ran.code:
            raise RuntimeError(f"the repository could not be set up; is git installed? {ran.output}")
        await check_pytest(self._sandbox, task.data)
        self._commit, self._task = ran.output.strip(), task
        asked: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": task.data["instruction"]},
        ]
        return Observation(asked, _tools(task))

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results: list[Message] = []
        offered = _tools(self._task)
        known = {each["name"]: (each, lambda **arguments: "") for each in offered}
        for given in action.get("tool_calls") or _block(action):
            read = call(known, given)
            if read.valid and read.name == "done":
                return StepResult(Observation([]), done=True)
            said = await self._act(read) if read.valid else read.message["content"]
            results.append({**read.message, "content": said} if given["id"] else _told(said))
            if read.valid and read.name == "fix":
                return StepResult(Observation(results), done=True)
        results = results or [_told(f"Call one of: {', '.join(each['name'] for each in offered)}.")]
        over = self._steps >= self._max_steps or self._sandbox is None
        return StepResult(Observation(results, offered), done=over)

    async def _act(self, read: Called) -> str:
        """The output and, if files have changed, the diff and the linter's report."""
        assert self._task is not None
        data = self._task.data
        if self._sandbox is None:
            return "error: the shell is gone"
        try:
            if read.name == "bash":
                said = shown(await self._sandbox.run(read.arguments["command"]))
            else:
                line = data["line"] if read.name == "fix" else read.arguments["line"]
                said = await self._replace(data["file"], int(line), read.arguments["text"])
            return f"{said}\n{await self._changes()}".strip()
        except SandboxGone as error:  # the agent's command killed it; nothing is left to grade
            await self._leave()
            return f"error: {error}"

    async def _replace(self, file: str, line: int, text: str) -> str:
        """A line without indentation gets that of the line it replaces."""
        assert self._sandbox is not None
        lines = (await self._sandbox.take()).get(file, b"").decode("utf-8", "replace").splitlines()
        if not 1 <= line <= len(lines):
            return f"error: {file} has lines 1 to {len(lines)}"
        old = lines[line - 1]
        indent = "" if text[:1].isspace() else old[: len(old) - len(old.lstrip())]
        lines[line - 1] = indent + text
        await self._sandbox.put({file: ("\n".join(lines) + "\n").encode()})
        return ""

    async def _changes(self) -> str:
        assert self._sandbox is not None
        diff = (await self._sandbox.run(f"{_MARK} {self._commit}")).output.strip()
        if diff == self._diff:
            return ""
        self._diff = diff
        names = [
            shlex.quote(name) for name in re.findall(r"^\+\+\+ b/(.*)$", diff, re.M) if name.endswith(".py")
        ]
        lint = f"{python_path()} -I -c {shlex.quote(_LINT)} {' '.join(names)}"
        found = (await self._sandbox.run(lint)).output.strip() if names else ""
        return f"diff:\n{diff}\nlint: {found or 'clean'}"

    async def evaluate(self) -> Outcome:
        """Run the task's own tests on the agent's source files in a clean checkout."""
        if self._task is None or self._sandbox is None:
            return Outcome(-1.0, False, {"steps": self._steps})
        data = self._task.data
        try:
            changed = await self._sandbox.take()
        except (SandboxGone, ValueError, OSError, tarfile.TarError):  # the agent filled or broke the sandbox
            return Outcome(-1.0, False, {"steps": self._steps})
        async with await self._begin(self._task, carried(self._base, changed)) as fresh:
            if data.get("test_patch"):
                await fresh.put({".tests.diff": data["test_patch"].encode()})
                applied = await fresh.run("git apply --whitespace=nowarn .tests.diff && rm .tests.diff", 60)
                if applied.code:  # the files it patches are unchanged, so the task is at fault
                    raise RuntimeError(f"the task's test_patch does not apply: {applied.output}")
            failing = await passed(fresh, data, data["fail_to_pass"])
            passing = await passed(fresh, data, data["pass_to_pass"])
        solved = all(failing) and all(passing) and bool(failing)
        facts: Json = {
            "fail_to_pass": f"{sum(failing)} of {len(failing)}",
            "pass_to_pass": f"{sum(passing)} of {len(passing)}",
            "steps": self._steps,
        }
        return Outcome(1.0 if solved else -1.0, solved, facts)

    async def close(self) -> None:
        self._task = None
        await self._leave()

    async def _leave(self) -> None:
        if (sandbox := self._sandbox) is not None:
            self._sandbox = None
            await sandbox.close()

    async def _begin(self, task: Task, files: Mapping[str, bytes]) -> Sandbox:
        packages = task.data.get("packages")
        return await Sandbox(
            files, self._limits, [packages] if packages and Path(packages).is_dir() else []
        ).__aenter__()


def _tools(task: Task) -> list[Tool]:
    """Difficulty 1: choose one of several lines; 2: write a line; otherwise: a shell."""
    if options := task.data.get("options"):
        fix = tool("fix", "Replaces the wrong line.", text="string")
        fix["parameters"]["properties"]["text"]["enum"] = options
        return [fix]
    return [LINE, DONE] if task.data.get("difficulty") == 2 else [BASH, DONE]


def _block(action: Message) -> list[Json]:
    """A reply without tool calls may contain one bash block instead."""
    found = re.search(r"```(?:bash|sh)\n(.*?)```", action.get("content") or "", re.S)
    return [{"id": "", "name": "bash", "arguments": json.dumps({"command": found.group(1)})}] if found else []


def _told(said: str) -> Message:
    return {"role": "user", "content": said}


def _checkout(data: Json) -> dict[str, bytes]:
    if "files" in data:
        return {name: text.encode() for name, text in data["files"].items()}
    packed = subprocess.run(
        ["git", "-C", data["clone"], "archive", data["base_commit"]], capture_output=True, check=False
    )
    if packed.returncode:
        raise RuntimeError(f"{data['clone']} at {data['base_commit']}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        read = ((entry.name, archive.extractfile(entry)) for entry in archive if entry.isreg())
        return {name: file.read() for name, file in read if file is not None}


def read_rows(path: Path) -> list[Task]:
    """SWE-bench rows, from JSON or JSONL; ValueError names the row and what it lacks."""
    text = path.read_text(encoding="utf-8")
    rows = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else map(json.loads, filter(None, text.splitlines()))
    )
    return [_row(path, number, row) for number, row in enumerate(rows, 1)]


def _row(path: Path, number: int, row: Json) -> Task:
    lacking = [
        name for name in ("repo", "base_commit", "problem_statement", "FAIL_TO_PASS") if name not in row
    ]
    if lacking:
        raise ValueError(f"{path}, row {number} has no {', '.join(lacking)}: it is not a row of SWE-bench")
    folder = row["repo"].replace("/", "__")
    clone, packages = path.parent / "repos" / folder, path.parent / "packages" / folder
    if not clone.is_dir():
        raise ValueError(f"{path}, row {number}: clone {row['repo']} into {clone}")
    data: Json = {
        "instruction": row["problem_statement"], "repo": row["repo"], "clone": str(clone.resolve()),
        "base_commit": row["base_commit"], "test_patch": row.get("test_patch", ""),
        "fail_to_pass": _names(row["FAIL_TO_PASS"]), "pass_to_pass": _names(row.get("PASS_TO_PASS", [])),
        "packages": str(packages.resolve()),
    }  # fmt: skip
    more = {name: row[name] for name in ("test_cmd", "split", "difficulty") if name in row}
    return Task(str(row.get("instance_id", f"{path.stem}-{number}")), data | more)


def _names(given: Any) -> list[str]:
    """SWE-bench stores these lists as JSON strings."""
    return list(json.loads(given)) if isinstance(given, str) else list(given)
