"""For trainers elsewhere: exact token ids with each reply, and a base URL for each session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system

ASKED = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    made = scripted_system(tmp_path / "home")
    yield made
    await made.close()


@pytest.fixture
async def http(system: ServingSystem) -> AsyncIterator[httpx.AsyncClient]:
    assert isinstance(system.engine, ScriptedEngine)
    for said in ("Good day to you.", "And to you."):
        system.engine.say(said)
    key = system.keys.key_of("default")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()),
        base_url="http://test",
        headers={"authorization": f"Bearer {key}"},
    ) as client:
        yield client


def recorded(system: ServingSystem, turn_id: str) -> tuple[list[int], list[int]]:
    turn = system.ledgers.serve.load_turn(turn_id)
    assert turn is not None
    return turn.prompt_ids, [token.id for token in turn.tokens]


async def test_ids_are_those_of_the_ledger(system: ServingSystem, http: httpx.AsyncClient) -> None:
    asked = {**ASKED, "return_token_ids": True}
    answer = (await http.post("/v1/chat/completions", json=asked)).json()
    await system.gateway.drain()
    prompt, reply = recorded(system, answer["id"])
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == reply
    assert len(reply) > 1


async def test_streamed_ids_add_up_to_the_same(system: ServingSystem, http: httpx.AsyncClient) -> None:
    asked = {**ASKED, "return_token_ids": True, "stream": True}
    lines = (await http.post("/v1/chat/completions", json=asked)).text.splitlines()
    chunks: list[Any] = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    await system.gateway.drain()
    prompt, reply = recorded(system, chunks[0]["id"])
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [prompt]
    assert [i for chunk in chunks for choice in chunk["choices"] for i in choice["token_ids"]] == reply


async def test_who_does_not_ask_gets_none(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/chat/completions", json=ASKED)).json()
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]


async def test_a_url_is_a_session(system: ServingSystem, http: httpx.AsyncClient) -> None:
    for _ in range(2):
        answer = await http.post("/sessions/attempt-7/v1/chat/completions", json=ASKED)
        assert answer.headers["x-session-id"] == "attempt-7"
    await system.gateway.drain()
    found = (await http.get("/v1/sessions/attempt-7")).json()
    assert len(found["turns"]) == 2
    assert (await http.get("/sessions/attempt-7/v1/models")).status_code == 200


async def test_a_session_url_needs_a_key_as_any_other(system: ServingSystem) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://test"
    ) as stranger:
        answer = await stranger.post("/sessions/attempt-7/v1/chat/completions", json=ASKED)
        assert answer.status_code == 401
