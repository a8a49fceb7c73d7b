"""A scripted server and an agent that talks like OpenClaw: rewriting its history, without headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system

TOOLS = [
    {"type": "function", "function": {"name": "exec", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
]  # fmt: skip
CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nThe time is {n}.\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    system = scripted_system(tmp_path / "home")
    yield system
    await system.close()


class Speaker:
    """One client; every request is a fresh HTTP call without any session header."""

    def __init__(self, system: ServingSystem, user: str = "default") -> None:
        self.system = system
        key = system.keys.key_of(user) or system.keys.add(user)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(system.app()),
            base_url="http://test",
            headers={"authorization": f"Bearer {key}"},
        )

    async def ask(self, messages: list[dict[str, Any]], says: str = "", **more: Any) -> dict[str, Any]:
        """Send, with the reply scripted; returns the reply's message with its ``id`` and ``session``."""
        engine = self.system.engine
        assert isinstance(engine, ScriptedEngine)
        if says:
            engine.say(says)
        headers = more.pop("headers", {})
        answer = await self.http.post(
            "/v1/chat/completions", json={"model": "scripted", "messages": messages, **more}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return {**body["choices"][0]["message"], "id": body["id"], "session": answer.headers["x-session-id"]}

    async def turn(self, turn_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/turns/{turn_id}")
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result


class Agent(Speaker):
    """Keeps a history as OpenClaw does, and sends it rewritten every time."""

    def __init__(self, system: ServingSystem) -> None:
        super().__init__(system)
        self.history: list[dict[str, Any]] = []
        self.count = 0

    def sent(self, extra: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Timestamps on user messages, new call ids, compact arguments, context at the end."""
        self.count += 1
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are helpful. Request {self.count}."}
        ]
        for message in self.history + (extra or []):
            message = dict(message)
            if message["role"] == "user":
                message["content"] = f"[Mon 2026-09-07 10:{self.count % 60:02d} UTC] {message['content']}"
            if message.get("tool_calls"):
                message["tool_calls"] = [self._rewritten(call) for call in message["tool_calls"]]
                message["content"] = None
            if message.get("tool_call_id"):
                message["tool_call_id"] = message["tool_call_id"].replace("_", "")
            messages.append(message)
        return [*messages, {"role": "user", "content": CONTEXT.format(n=self.count)}]

    def _rewritten(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
        function = {"name": call["function"]["name"], "arguments": arguments}
        return {"id": call["id"].replace("_", ""), "type": "function", "function": function}

    async def main(self, text: str, says: str) -> dict[str, Any]:
        """A main-line request with a user's message; the reply joins the history."""
        self.history.append({"role": "user", "content": text})
        return await self.again(says)

    async def again(self, says: str) -> dict[str, Any]:
        reply = await self.ask(self.sent(), says, tools=TOOLS)
        self.history.append({k: v for k, v in reply.items() if k in ("role", "content", "tool_calls")})
        return reply

    async def tool(self, output: str, says: str) -> dict[str, Any]:
        call_id = self.history[-1]["tool_calls"][0]["id"]
        self.history.append({"role": "tool", "tool_call_id": call_id, "content": output})
        return await self.again(says)

    async def side(self, text: str, **more: Any) -> dict[str, Any]:
        """A request about the conversation that leaves no trace in it."""
        return await self.ask(self.sent([{"role": "user", "content": text}]), "NO_REPLY", **more)


@pytest.fixture
def connect() -> Callable[..., httpx.AsyncClient]:
    """``connect(system)``: a client with the default user's key."""

    def connect_to(system: ServingSystem, key: str | None = None) -> httpx.AsyncClient:
        key = key or str(system.keys.key_of("default"))
        transport = httpx.ASGITransport(system.app(), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    return connect_to
