"""OpenEnv servers (https://github.com/huggingface/OpenEnv): their sessions as episodes.

``tasks`` is a server's URL (one task per seed) or a JSONL file with ``{"url": …, "reset": {…}}`` in each
line, where ``reset`` holds the arguments of the server's ``reset``. Tools of MCP servers are offered as
they are; other servers take one action, whose schema they publish. Step rewards are summed; a task is
solved when the sum reaches ``solved_at`` (default 1). The server is third-party: what it runs is not in our
sandbox.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from openclaw_rl.envs.tasks import by_position
from openclaw_rl.envs.tools import read_arguments
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task, Tool

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_SYSTEM = "You act in an environment, step by step, with the tools. You are told what came of each step."
_SEEDS = 300
_SECONDS = 60.0
_MOST_BYTES = 64 * 2**20
#: Error codes by which a server reports a wrong action rather than its own failure.
_AGENTS_FAULT = ("VALIDATION_ERROR", "EXECUTION_ERROR")


class OpenEnv:
    """One connection, hence one session on the server, per episode."""

    def __init__(self, tasks: str = "", max_steps: int = 20) -> None:
        _websockets()
        self._tasks, self._max_steps = read_tasks(tasks), max_steps
        self._task: Task | None = None
        self._socket: ClientConnection | None = None
        self._tools: list[Tool] = []
        self._is_mcp, self._over = False, False
        self._steps, self._total = 0, 0.0

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        await self.close()
        url = task.data["url"].rstrip("/")
        address = f"ws{url.removeprefix('http')}/ws"
        self._socket = await _websockets()(address, max_size=_MOST_BYTES, open_timeout=_SECONDS)
        self._steps, self._total, self._over = 0, 0.0, False
        began = await self._ask("reset", task.data.get("reset", {}))
        self._tools = await self._offered(url)
        self._task = task
        told = "\n\n".join(filter(None, (task.data.get("instruction"), shown(began, whole=True))))
        return Observation(
            [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": told or "Begin."}],
            self._tools,
        )

    async def _offered(self, url: str) -> list[Tool]:
        async with httpx.AsyncClient(timeout=_SECONDS) as http:
            answer = await http.get(f"{url}/schema")
        schema: Json = answer.raise_for_status().json()["action"]
        self._is_mcp = schema.get("title") in ("Action", "CallToolAction", "ListToolsAction")
        if not self._is_mcp:
            return [_tool("act", schema.get("description", ""), schema)]
        listed = (await self._ask("step", {"type": "list_tools"}))["observation"]["tools"]
        return [_tool(each["name"], each["description"], each["input_schema"]) for each in listed]

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results = [await self._act(given) for given in action.get("tool_calls") or self._said(action)]
        names = ", ".join(each["name"] for each in self._tools)
        results = results or [{"role": "user", "content": f"Call one of: {names}."}]
        return StepResult(
            Observation(results, self._tools), done=self._over or self._steps >= self._max_steps
        )

    def _said(self, action: Message) -> list[Json]:
        """A reply without tool calls is the value of the action's only required argument."""
        needed = self._tools[0]["parameters"].get("required", []) if len(self._tools) == 1 else []
        text = str(action.get("content") or "").strip()
        if self._is_mcp or len(needed) != 1 or not text:
            return []
        return [{"id": "", "name": "act", "arguments": json.dumps({needed[0]: text})}]

    async def _act(self, given: Json) -> Message:
        message: Message = {"role": "tool", "tool_call_id": given["id"], "name": given.get("name", "")}
        try:
            content = await self._do(given)
        except ValueError as error:
            content = f"error: {error}"
        return {**message, "content": content} if given["id"] else {"role": "user", "content": content}

    async def _do(self, given: Json) -> str:
        """ValueError for the agent's mistakes."""
        declared = {each["name"]: each for each in self._tools}.get(str(given.get("name")))
        if declared is None:
            raise ValueError(f"there is no tool {given.get('name')!r}")
        if self._over:
            raise ValueError("the episode is over")
        arguments = read_arguments(declared, given.get("arguments", "{}"))
        call = {"type": "call_tool", "tool_name": declared["name"], "arguments": arguments}
        found = await self._ask("step", call if self._is_mcp else arguments)
        self._total += float(found.get("reward") or 0.0)
        self._over = bool(found.get("done"))
        return shown(found) or "done"

    async def _ask(self, kind: str, data: Json) -> Json:
        """ValueError if the action is at fault, RuntimeError if the server is."""
        assert self._socket is not None
        async with asyncio.timeout(_SECONDS):
            await self._socket.send(json.dumps({"type": kind, "data": data}))
            answer: Json = json.loads(await self._socket.recv())
        found: Json = answer.get("data") or {}
        if answer.get("type") == "error":
            said = f"{found.get('message')} {found.get('errors') or ''}".strip()
            if kind == "step" and found.get("code") in _AGENTS_FAULT:
                raise ValueError(said)
            raise RuntimeError(f"the OpenEnv server refused {kind}: {said}")
        return found

    async def evaluate(self) -> Outcome:
        wanted = float(self._task.data.get("solved_at", 1.0)) if self._task else 1.0
        solved = self._total >= wanted
        score = 1.0 if solved else max(-1.0, min(self._total / wanted * 2 - 1, 0.99)) if wanted > 0 else -1.0
        return Outcome(score, solved, {"steps": self._steps, "reward": self._total, "over": self._over})

    async def close(self) -> None:
        self._task = None
        if (socket := self._socket) is not None:
            self._socket = None
            await socket.close()


def _websockets() -> Any:
    try:
        from websockets.asyncio.client import connect
    except ImportError:
        raise ValueError("OpenEnv servers need a library: pip install 'openclaw-rl[openenv]'") from None
    return connect


def shown(found: Json, whole: bool = False) -> str:
    """A step's result without redundant fields; a single string is shown as it is.

    ``whole``: include the metadata, in which some environments describe themselves.
    """
    seen = {
        name: value
        for name, value in (found.get("observation") or {}).items()
        if value not in (None, {}, []) and name not in ("tool_name", "error")
    }
    if "metadata" in seen and len(seen) > 1 and not whole:
        seen.pop("metadata")
    if error := (found.get("observation") or {}).get("error"):
        return f"error: {error.get('message', error) if isinstance(error, dict) else error}"
    result = seen.get("result")
    if isinstance(result, dict) and "data" in result:  # FastMCP's wrapper
        seen["result"] = result["data"]
    one = next(iter(seen.values())) if len(seen) == 1 else None
    return one if isinstance(one, str) else json.dumps(seen, ensure_ascii=False) if seen else ""


def _tool(name: str, about: str, schema: Json) -> Tool:
    """The fields common to all OpenEnv actions are left out of its arguments."""
    given = schema.get("properties") or {}
    known = {each: value for each, value in given.items() if each not in ("metadata", "type")}
    kept: Json = {"type": "object", "properties": known}
    kept["required"] = [each for each in schema.get("required", []) if each in known]
    if "$defs" in schema:
        kept["$defs"] = schema["$defs"]
    return {"name": name, "description": about, "parameters": kept}


def read_tasks(tasks: str) -> list[Task]:
    """One task per seed, or per line of a file; ValueError says what is expected."""
    if tasks.startswith(("http://", "https://")):
        rows: list[Json] = [{"url": tasks, "reset": {"seed": seed}} for seed in range(_SEEDS)]
    elif tasks:
        path = Path(tasks)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        rows = []
    if not rows or not all(isinstance(row, dict) and "url" in row for row in rows):
        raise ValueError(
            "which OpenEnv server? --tasks http://127.0.0.1:8000, or a JSONL file with "
            '{"url": "http://…", "reset": {…}} in each line'
        )
    return [Task(str(row.get("id", n)), {"split": by_position(n), **row}) for n, row in enumerate(rows)]
