"""Episodes: an agent that uses the public API acts in an environment, step by step.

The agent is a client like any other, so each episode is a session in the ledger, with exact tokens and the
environment's answers as next states, and is judged like a conversation. Failures are attributed: a failed
environment is retried once and then left out, and is never counted against the model.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from openclaw_rl.envs.pool import EnvironmentFailed, Lease, LeaseExpired, Pool
from openclaw_rl.envs.replay import Replay
from openclaw_rl.types import Json, Message, Outcome, Task, Tool

Failure = Literal["", "model", "environment", "server", "time-out"]
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Agent:
    """Where the model is served, and how requests are made."""

    url: str
    """Including ``/v1``."""
    key: str
    max_tokens: int = 96
    temperature: float = 0.7
    force_calls: bool = True
    """Force every reply to be a tool call, by a grammar; the forced tokens carry no signal."""
    seconds: float = 300.0
    """Time limit for one reply."""
    replays: Path | None = None
    """Folder for replays of the episodes, for people to review."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The result of one attempt at a task."""

    task: Task
    attempt: int
    session_id: str
    outcome: Outcome | None
    """None if unknown, because something other than the model failed."""
    failure: Failure = ""
    reason: str = ""
    turn_ids: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def solved(self) -> bool:
        return self.outcome is not None and self.outcome.solved


def connect(
    agent: Agent, parallel: int, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=agent.url,
        headers={"authorization": f"Bearer {agent.key}"},
        timeout=agent.seconds,
        limits=httpx.Limits(max_connections=parallel + 4),
        transport=transport,
    )


async def roll_out(
    agent: Agent,
    pool: Pool,
    tasks: Sequence[tuple[Task, int]],
    parallel: int,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Episode]:
    """Attempts at tasks, ``parallel`` at once, in the order they finish."""
    async with connect(agent, parallel, transport) as http:
        waiting = iter(tasks)
        running: set[asyncio.Task[Episode]] = set()
        try:
            while True:
                while len(running) < parallel and (nextone := next(waiting, None)) is not None:
                    running.add(asyncio.create_task(attempt(agent, http, pool, *nextone)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finished in done:
                    yield finished.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def attempt(agent: Agent, http: httpx.AsyncClient, pool: Pool, task: Task, number: int) -> Episode:
    """If the environment breaks, start over once, in another one."""
    for tried in range(_TRIES):
        episode = await _episode(agent, http, pool, task, number)
        if episode.failure != "environment" or tried == _TRIES - 1:
            return episode
    raise AssertionError("unreachable")


async def _episode(agent: Agent, http: httpx.AsyncClient, pool: Pool, task: Task, attempt: int) -> Episode:
    session_id, turn_ids, started = f"env-{uuid.uuid4().hex}", list[str](), time.monotonic()
    replay, last = Replay(task), list[Json]()

    def ended(outcome: Outcome | None, failure: Failure = "", reason: str = "") -> Episode:
        seconds = time.monotonic() - started
        if agent.replays is not None and replay.steps:
            replay.write(agent.replays, session_id, outcome, failure, reason)
        return Episode(task, attempt, session_id, outcome, failure, reason, turn_ids, seconds)

    try:
        async with pool.lease() as lease:
            started = time.monotonic()
            last = await _act(agent, http, lease, replay, session_id, turn_ids)
            outcome = await lease.evaluate(f"{session_id} evaluate")
        return ended(outcome, "" if outcome.solved else "model")
    except LeaseExpired as error:
        return ended(None, "time-out", str(error))
    except EnvironmentFailed as error:
        return ended(None, "environment", str(error))
    except httpx.TimeoutException as error:
        return ended(None, "time-out", f"the model took too long: {type(error).__name__}")
    except httpx.HTTPError as error:
        return ended(None, "server", str(error))
    finally:
        await _close(http, session_id, turn_ids, last)


async def _act(
    agent: Agent, http: httpx.AsyncClient, lease: Lease, replay: Replay, session_id: str, turn_ids: list[str]
) -> list[Json]:
    """Act until the environment ends the episode, or the conversation outgrows the context. Returns what
    followed the last action, which no further request tells the server."""
    seen = await lease.reset(replay.task, f"{session_id} reset")
    replay.add(None, seen)
    messages = [_wire(message) for message in seen.messages]
    tools = seen.tools
    for number in range(10_000):
        reply = await _ask(agent, http, session_id, messages, tools)
        if reply is None:
            return []
        turn_ids.append(reply["id"])
        said = reply["choices"][0]["message"]
        action = _action(said)
        result = await lease.step(action, f"{session_id} step {number}")
        replay.add(action, result.observation)
        following = [_wire(message) for message in result.observation.messages]
        if result.done:
            return following
        messages += [said, *following]
        tools = result.observation.tools
    return []


async def _ask(
    agent: Agent, http: httpx.AsyncClient, session_id: str, messages: Sequence[Message], tools: Sequence[Tool]
) -> Json | None:
    """One reply; None if the conversation has outgrown the model's context. While the server is busy (429),
    the request is retried for as long as a reply may take."""
    body: Json = {
        "model": "default", "messages": list(messages), "max_tokens": agent.max_tokens,
        "temperature": agent.temperature,
    }  # fmt: skip
    if tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        body["tool_choice"] = "required" if agent.force_calls else "auto"
    deadline = time.monotonic() + agent.seconds
    while True:
        answer = await http.post(
            "/chat/completions", json=body, headers={"x-session-id": session_id, "x-turn-type": "main"}
        )
        left = deadline - time.monotonic()
        if answer.status_code != 429 or left <= 0:
            break
        await asyncio.sleep(min(left, _retry_after(answer)))
    if answer.status_code == 400 and "context_length_exceeded" in answer.text:
        return None
    answer.raise_for_status()
    reply: Json = answer.json()
    return reply


def _retry_after(answer: httpx.Response) -> float:
    try:
        return max(0.05, float(answer.headers.get("retry-after", 1)))
    except ValueError:  # a date
        return 1.0


async def _close(
    http: httpx.AsyncClient, session_id: str, turn_ids: Sequence[str], last: Sequence[Json]
) -> None:
    if turn_ids:
        try:
            await http.post(f"/sessions/{session_id}/close", json={"messages": list(last)})
        except httpx.HTTPError:
            return  # an idle session closes by itself


def _action(said: Json) -> Message:
    """The API's message in the internal form."""
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in said.get("tool_calls") or []
    ]
    action: Message = {"role": "assistant", "content": said.get("content") or ""}
    return {**action, "tool_calls": calls} if calls else action


def _wire(message: Message) -> Json:
    return {name: value for name, value in message.items() if name != "name" or message["role"] != "tool"}
