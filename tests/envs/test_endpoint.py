"""A model turned around: what a program asks is read here, and answered from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from openclaw_rl.envs.endpoint import Endpoint

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = await Endpoint().open()
    yield made
    await made.close()


async def test_a_request_is_answered_by_a_reply(endpoint: Endpoint) -> None:
    async with httpx.AsyncClient(base_url=endpoint.url) as http:
        asking = asyncio.create_task(http.post("/chat/completions", json=ASKED))
        assert await endpoint.requests.get() == ASKED
        call = {"id": "1", "name": "add", "arguments": "{}"}
        endpoint.reply({"role": "assistant", "content": "", "tool_calls": [call]})
        [choice] = (await asking).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}


async def test_who_wants_a_stream_gets_one(endpoint: Endpoint) -> None:
    async with httpx.AsyncClient(base_url=endpoint.url) as http:
        asking = asyncio.create_task(http.post("/chat/completions", json={**ASKED, "stream": True}))
        await endpoint.requests.get()
        endpoint.reply({"role": "assistant", "content": "hello"})
        *events, last = [line[6:] for line in (await asking).text.split("\n\n") if line]
    assert last == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    assert deltas == [{"role": "assistant", "content": "hello"}, {}]


async def test_others_are_not_answered(endpoint: Endpoint) -> None:
    """Not without the secret in the URL."""
    port = endpoint.url.split(":")[2].split("/")[0]
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASKED)
    assert answer.status_code == 404
    assert endpoint.requests.empty()


async def test_who_still_waits_when_it_closes_is_let_go(endpoint: Endpoint) -> None:
    async with httpx.AsyncClient(base_url=endpoint.url) as http:
        asking = asyncio.create_task(http.post("/chat/completions", json=ASKED))
        await endpoint.requests.get()
        await endpoint.close()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
