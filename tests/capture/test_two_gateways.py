"""Two gateways on one PostgreSQL: a conversation may go to and fro between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def gateway(home: Path, url: str) -> AsyncIterator[tuple[ServingSystem, httpx.AsyncClient]]:
    system = scripted_system(home, ledger_url=url)
    headers = {"authorization": "Bearer shared-key"}
    transport = httpx.ASGITransport(app=system.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield system, client
    await system.close()


async def ask(client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], str, str]:
    answer = await client.post("/v1/chat/completions", json={"model": "scripted", "messages": messages})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["message"], body["id"], answer.headers["x-session-id"]


@pytest.fixture
async def gateways(
    new_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[tuple[ServingSystem, httpx.AsyncClient]]]:
    monkeypatch.setenv("OPENCLAW_RL_API_KEY", "shared-key")
    url = new_url("postgresql")
    async with gateway(tmp_path / "a", url) as one, gateway(tmp_path / "b", url) as other:
        yield [one, other]


async def test_they_continue_each_others_sessions(gateways: Any) -> None:
    said: list[dict[str, Any]] = []
    turns, sessions = [], set()
    for number in range(6):
        system, client = gateways[number % 2]
        system.engine.say(f"reply {number}")
        said.append({"role": "user", "content": f"question {number}"})
        reply, turn_id, session_id = await ask(client, said)
        said.append(reply)
        turns.append(turn_id)
        sessions.add(session_id)
    assert len(sessions) == 1
    ledger = gateways[0][0].ledgers.serve
    await asyncio.gather(*(system.gateway.drain() for system, _ in gateways))
    found = [ledger.load_turn(turn_id) for turn_id in turns]
    assert [turn.continues for turn in found] == [None, *turns[:-1]]
    for number, turn_id in enumerate(turns[:-1]):
        [after] = [event for event in ledger.events_of(turn_id) if event.kind == "next_state"]
        assert after.messages == [{"role": "user", "content": f"question {number + 1}"}]


async def test_asked_again_at_the_other_gateway_is_known(gateways: Any) -> None:
    """The one that hears it again answered the turn before, but not the one that is asked for again."""
    (one, first), (other, second) = gateways
    one.engine.say("reply 0")
    reply, _, session_id = await ask(first, [{"role": "user", "content": "question"}])
    said = [{"role": "user", "content": "question"}, reply, {"role": "user", "content": "and then?"}]
    other.engine.say("reply 1")
    _, turn_id, again = await ask(second, said)
    await other.gateway.drain()
    one.engine.say("reply 2")
    _, _, third = await ask(first, said)
    assert {session_id, again, third} == {session_id}
    await one.gateway.drain()
    await one.recorder.close()
    assert "regenerated" in [event.kind for event in one.ledgers.serve.events_of(turn_id)]


async def test_each_turn_is_judged_once_whoever_answered(gateways: Any) -> None:
    for number in range(8):
        system, client = gateways[number % 2]
        system.engine.say(f"reply {number}")
        await ask(client, [{"role": "user", "content": f"question {number}"}])
    ledgers = gateways[0][0].ledgers
    queue = LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=0)
    queue.pull()
    ready = queue.ready(100, 1e12)
    assert len(ready) == len(set(ready)) == 8
    assert ledgers.serve.counts()["turns"] == 8
