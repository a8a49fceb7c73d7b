"""Tool calls: the agent calls functions until it knows the answer, and submits it with the ``answer`` tool.

Each line of a JSONL task file is ``{"prompt": …, "answer": …, "tools": [names]}``. Besides the built-in tools
there are Python functions named ``pkg.module:function`` (described to the agent by their signature and
docstring) and ``python``, an interpreter in a sandbox. With ``"one_call": true`` the first call ends the task
and its result is the answer. A tools file, ``{"mcpServers": {…}, "tools": [names]}``, applies to all tasks:
the tools of its MCP servers are added to each task's own, and its ``tools`` are the default for tasks that
name none.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from dataclasses import replace
from pathlib import Path

from openclaw_rl.envs.mcp_tools import McpTools
from openclaw_rl.envs.sandbox import Limits, Sandbox, SandboxGone, python_path
from openclaw_rl.envs.tasks import toolcall_tasks
from openclaw_rl.envs.tools import BUILT_IN, Called, Function, call, tool
from openclaw_rl.plugins import load_object
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task, Tool

ANSWER = tool("answer", "Says the answer and ends the task.", answer="string")
_PYTHON = tool("python", "Runs Python code and gives what it prints.", code="string")
_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean", dict: "object", list: "array"}
_SYSTEM = "Solve the task with the tools. Call answer with the result as soon as you know it."
#: The score of a wrong answer reached with valid calls only, and of any other failure.
_TRIED, _FAILED = -0.8, -1.0


class ToolCalls:
    """``tasks``: a JSONL file; without one, the tasks in this package."""

    def __init__(self, tasks: str = "", max_steps: int = 8) -> None:
        self._tasks = read_tasks(Path(tasks)) if tasks else toolcall_tasks()
        self._max_steps, self._config = max_steps, read_tools(os.environ.get("TOOLS_CONFIG", ""))
        self.offered: list[str] = self._config.get("tools") or list(BUILT_IN)
        """Default tools, for tasks that name none."""
        self._mcp: McpTools | None = None
        self._task: Task | None = None
        self._tools: dict[str, tuple[Tool, Function]] = {}
        self._offered: list[Tool] = []
        self._calls: list[Called] = []
        self._steps, self._said = 0, ""
        self._sandbox: Sandbox | None = None

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        self._steps, self._said, self._calls = 0, "", []
        names = task.data.get("tools") or self.offered
        if servers := self._config.get("mcpServers"):
            self._mcp = McpTools(servers)
            await self._mcp.open()
        self._task = task
        self._tools = {name.rpartition(":")[2]: _tool(name) for name in names if name != "python"}
        offered = [declared for declared, _ in self._tools.values()]
        last = [] if task.data.get("one_call") else [ANSWER]
        served = self._mcp.tools if self._mcp is not None else []
        self._offered = [*offered, *served, *([_PYTHON] if "python" in names else []), *last]
        asked: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": task.data["instruction"]},
        ]
        return Observation(asked, self._offered)

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results: list[Message] = []
        for given in action.get("tool_calls") or []:
            if given.get("name") == "answer" and ANSWER in self._offered:
                done = call({"answer": (ANSWER, lambda answer: answer)}, given)
                if done.valid:
                    self._said = str(done.arguments["answer"])
                    return StepResult(Observation([]), done=True)
                results.append(done.message)
            elif given.get("name") == "python" and _PYTHON in self._offered:
                results.append(await self._interpret(given))
            else:
                self._calls.append(await self._call(given))
                results.append(self._calls[-1].message)
                if self._task.data.get("one_call"):
                    self._said = results[-1]["content"] if self._calls[-1].valid else ""
                    return StepResult(Observation(results), done=True)
        if not results:
            results = [{"role": "user", "content": "Call one of the tools; call answer with the result."}]
        return StepResult(Observation(results, self._offered), done=self._steps >= self._max_steps)

    async def _call(self, given: Message) -> Called:
        served = {each["name"]: each for each in (self._mcp.tools if self._mcp is not None else [])}
        if self._mcp is None or given.get("name") not in served:
            return await asyncio.to_thread(call, self._tools, given)
        read = call({name: (each, lambda **arguments: "") for name, each in served.items()}, given)
        if not read.valid:
            return read
        said, valid = await self._mcp.call(read.name, read.arguments)
        return replace(read, message={**read.message, "content": said}, valid=valid)

    async def _interpret(self, given: Message) -> Message:
        read = call({"python": (_PYTHON, lambda code: code)}, given)
        if not read.valid:
            return read.message
        if self._sandbox is None:
            self._sandbox = await Sandbox(limits=Limits(seconds=5)).__aenter__()
        try:
            await self._sandbox.put({"code.py": read.arguments["code"].encode()})
            ran = await self._sandbox.run(f"{python_path()} code.py")
            said = "error: it took too long" if ran.timed_out else ran.output
        except SandboxGone as error:
            said = f"error: {error}"
            await self._leave()  # the code killed its sandbox; the next call gets a new one
        self._calls.append(read)
        return {**read.message, "content": said}

    async def evaluate(self) -> Outcome:
        """Only the argument of ``answer`` counts, or the result of the one call; plain text never does."""
        expected = str(self._task.data["answer"]) if self._task else ""
        solved = bool(self._said) and same(self._said, expected)
        valid = sum(each.valid for each in self._calls)
        tried = bool(self._said) and valid > 0 and valid == len(self._calls)
        score = 1.0 if solved else _TRIED if tried else _FAILED
        return Outcome(score, solved, {"steps": self._steps, "calls": len(self._calls), "valid": valid})

    async def close(self) -> None:
        self._task = None
        if (mcp := self._mcp) is not None:
            self._mcp = None
            await mcp.close()
        await self._leave()

    async def _leave(self) -> None:
        if (sandbox := self._sandbox) is not None:
            self._sandbox = None
            await sandbox.close()


def same(said: str, expected: str) -> bool:
    """Compare as numbers if both are, else as text."""
    one, other = said.strip().replace(",", ""), expected.strip().replace(",", "")
    try:
        return float(one) == float(other)
    except ValueError:
        return re.sub(r"\s+", " ", said.strip().strip(".\"'")) == re.sub(r"\s+", " ", expected.strip())


def read_tasks(path: Path) -> list[Task]:
    """ValueError names the line that is not a task."""
    found: list[Task] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            data = {"instruction": str(row["prompt"]), "answer": str(row["answer"])}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: a task is {{prompt, answer, tools?}} ({error})"
            ) from None
        more = {name: row[name] for name in ("tools", "one_call", "split", "difficulty") if name in row}
        found.append(Task(str(row.get("id", f"{path.stem}-{number}")), data | more))
    return found


def read_tools(path: str) -> Json:
    """A JSON list of tools, or an object that also has MCP servers; ValueError says what is wrong."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except ValueError as error:
        raise ValueError(f"TOOLS_CONFIG, {path} is not JSON: {error}") from None
    found = {"tools": found} if isinstance(found, list) else found
    named = isinstance(found, dict) and all(isinstance(name, str) for name in found.get("tools", []))
    if not named or set(found) - {"mcpServers", "tools"}:
        raise ValueError(
            f'TOOLS_CONFIG, {path}: a JSON list of tools, such as ["add", "my_tools:search"], or '
            '{"mcpServers": {"files": {"command": …, "args": […]}}, "tools": […]}'
        )
    for name in found.get("tools", []):
        if name != "python":
            _tool(name)
    return found


def _tool(name: str) -> tuple[Tool, Function]:
    """A built-in tool, or a Python function, declared from its signature and docstring."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise ValueError(
            f"there is no tool {name!r}; known: {', '.join(BUILT_IN)}, python, or pkg.module:function"
        )
    function = load_object("tool", name)
    signature = inspect.signature(function, eval_str=True)
    arguments = {each.name: _KINDS.get(each.annotation, "string") for each in signature.parameters.values()}
    about = (inspect.getdoc(function) or "").partition("\n")[0]
    return tool(name.rpartition(":")[2], about, **arguments), function
