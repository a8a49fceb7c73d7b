"""What is off the record is answered like anything else, and leaves no byte behind."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.users import Users

OFF = {"x-off-the-record": "1"}
WORDS = "Rumpelstiltskin"


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    made = scripted_system(tmp_path / "home")
    yield made
    await made.close()


def client_of(system: ServingSystem) -> httpx.AsyncClient:
    headers = {"x-api-key": system.keys.key_of("default") or ""}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://t", headers=headers
    )


async def ask(
    client: httpx.AsyncClient, *texts: str, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"model": "scripted", "messages": messages, **more}
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def said(answer: httpx.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def files(system: ServingSystem) -> dict[str, str]:
    await system.gateway.drain()
    paths = [p for p in system.config.home.rglob("*") if p.is_file() and p.suffix != ".db-shm"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


async def test_not_a_byte_on_disk(system: ServingSystem) -> None:
    assert isinstance(system.engine, ScriptedEngine)
    async with client_of(system) as client:
        first = said(await ask(client, "Hello, what is your name?"))
        before = await files(system)
        system.engine.say(f"My name is {WORDS}.")
        answer = await ask(client, "Hello, what is your name?", first, f"No: {WORDS}!", headers=OFF)
        assert WORDS in said(answer)
        assert answer.headers["x-off-the-record"] == "1"
        streamed = await ask(client, f"{WORDS}?", headers=OFF, stream=True)
        assert streamed.headers["x-off-the-record"] == "1"
        assert await files(system) == before, "not even that something followed the reply before"
        assert (await client.get(f"/v1/turns/{answer.json()['id']}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": WORDS}]}),
        ("/v1/responses", {"input": WORDS}),
        ("/v1/completions", {"prompt": WORDS}),
    ],
)
async def test_in_every_dialect(system: ServingSystem, path: str, body: dict[str, Any]) -> None:
    async with client_of(system) as client:
        before = await files(system)
        answer = await client.post(path, json={"model": "scripted", **body}, headers=OFF)
        assert answer.status_code == 200, answer.text
        assert await files(system) == before


async def test_a_conversation_stays_off_the_record(system: ServingSystem) -> None:
    async with client_of(system) as client:
        reply = said(await ask(client, f"I am {WORDS}", headers=OFF))
        before = await files(system)
        answer = await ask(client, f"I am {WORDS}", reply, "And now?")
        assert answer.headers["x-off-the-record"] == "1"
        assert await files(system) == before
        other = await ask(client, "Something else")
        assert "x-off-the-record" not in other.headers
        assert system.ledgers.serve.load_turn(other.json()["id"]) is not None


async def test_a_users_setting_counts_at_once(system: ServingSystem) -> None:
    users = Users.in_home(system.config.home)
    async with client_of(system) as client:
        users.change("default", off_the_record=True)
        assert (await ask(client, WORDS)).headers["x-off-the-record"] == "1"
        users.change("default", off_the_record=False)
        assert "x-off-the-record" not in (await ask(client, "Hello there")).headers
    assert system.ledgers.serve.counts()["turns"] == 1


async def test_store_false_is_kept_but_not_given_out(system: ServingSystem) -> None:
    async with client_of(system) as client:
        first = await client.post("/v1/responses", json={"model": "scripted", "input": "Hi", "store": False})
        response_id = first.json()["id"]
        assert system.ledgers.serve.load_turn(response_id) is not None
        assert (await client.get(f"/v1/responses/{response_id}")).status_code == 404
        more = {"model": "scripted", "input": "Go on", "previous_response_id": response_id}
        answer = await client.post("/v1/responses", json=more)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        kept = await client.post("/v1/responses", json={"model": "scripted", "input": "Hi", "store": True})
        assert (await client.get(f"/v1/responses/{kept.json()['id']}")).status_code == 200


async def test_store_false_may_mean_off_the_record(tmp_path: Path) -> None:
    system = scripted_system(tmp_path / "home", store_false="off-the-record")
    try:
        async with client_of(system) as client:
            assert (await ask(client, WORDS, store=False)).headers["x-off-the-record"] == "1"
            assert "x-off-the-record" not in (await ask(client, "Hi", store=True)).headers
        assert system.ledgers.serve.counts()["turns"] == 1
    finally:
        await system.close()
