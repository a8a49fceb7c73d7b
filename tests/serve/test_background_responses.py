"""Replies that are made while nobody is connected: polled, cancelled, failed, and bounded like any other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system, until

URL = "/v1/responses"
ASK = {"model": "scripted", "input": "Hi", "background": True}


async def polled(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    while True:
        response: dict[str, Any] = (await client.get(f"{URL}/{response_id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.01)


def num_rows(system: ServingSystem) -> int:
    with system.ledgers.serve.db.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(schema.background)) or 0


async def settled(system: ServingSystem) -> None:
    """A reply is complete before the server has put away what it kept of it."""
    await until(lambda: (system.gateway.num_inflight, num_rows(system)) == (0, 0), "nothing is left of it")


async def test_it_is_answered_at_once_and_polled(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say("Hello there.", pause_after=5)
    first = await client.post(URL, json={**ASK, "instructions": "Be brief"})
    begun = first.json()
    assert (first.status_code, begun["status"], begun["background"]) == (200, "queued", True)
    assert (await client.get(f"{URL}/{begun['id']}")).json()["status"] == "in_progress"
    assert (await client.get(f"{URL}/{begun['id']}", params={"stream": "true"})).status_code == 400
    assert system.gateway.num_inflight == 1
    engine.resume.set()
    done = await polled(client, begun["id"])
    assert (done["status"], done["background"], done["instructions"]) == ("completed", True, "Be brief")
    assert done["output"][0]["content"][0]["text"] == "Hello there."
    await settled(system)
    goes_on = await client.post(URL, json={**ASK, "background": False, "previous_response_id": done["id"]})
    assert goes_on.headers["x-session-id"] == first.headers["x-session-id"]
    assert (await client.post(f"{URL}/{done['id']}/cancel")).json()["status"] == "completed"


async def test_a_cancelled_one_frees_its_place(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say("Hello there.", pause_after=5)
    begun = (await client.post(URL, json=ASK)).json()
    while not (await client.get(f"{URL}/{begun['id']}")).json()["output"]:
        await asyncio.sleep(0.01)
    cancelled = (await client.post(f"{URL}/{begun['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["incomplete_details"]) == ("cancelled", None)
    assert cancelled["output"][0]["content"][0]["text"] == "Hello"
    assert (system.gateway.num_inflight, engine.num_cancelled) == (0, 1)
    assert (await client.post(f"{URL}/{begun['id']}/cancel")).json() == cancelled
    assert (await client.get(f"{URL}/{begun['id']}")).json() == cancelled
    assert (await client.delete(f"{URL}/{begun['id']}")).json()["deleted"] is True
    assert (await client.get(f"{URL}/{begun['id']}")).status_code == 404
    assert num_rows(system) == 0


async def test_one_that_fails_says_so(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say("unlucky", fail_after=2)
    begun = (await client.post(URL, json=ASK)).json()
    failed = await polled(client, begun["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert (await client.post(f"{URL}/{begun['id']}/cancel")).json()["status"] == "failed"


async def test_after_a_restart_it_has_failed(tmp_path: Path, connect: Any) -> None:
    first, second = scripted_system(tmp_path / "home"), scripted_system(tmp_path / "home")
    assert isinstance(first.engine, ScriptedEngine)
    first.engine.say("Hello there.", pause_after=0)
    async with connect(first) as before, connect(second) as after:
        begun = (await before.post(URL, json=ASK)).json()
        failed = (await after.get(f"{URL}/{begun['id']}")).json()
        assert failed["status"] == "failed"
        assert "stopped before" in failed["error"]["message"]
    first.engine.resume.set()
    await first.close()
    await second.close()


async def test_it_is_added_to_its_conversation(client: httpx.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    begun = (await client.post(URL, json={**ASK, "conversation": conversation})).json()
    await polled(client, begun["id"])
    items = (await client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    assert [item["role"] for item in items] == ["assistant", "user"]


async def test_a_share_of_the_places_is_all_that_one_key_gets(make_system: Any, connect: Any) -> None:
    system = make_system(max_running=1, max_waiting=1)
    system.engine.say("Hello there.", pause_after=0)
    system.engine.say("Hello there.", pause_after=0)
    async with connect(system) as client:
        ids = [(await client.post(URL, json=ASK)).json()["id"] for _ in range(2)]
        refused = await client.post(URL, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        for response_id in ids:
            await client.post(f"{URL}/{response_id}/cancel")
        assert (await client.post(URL, json={**ASK, "background": False})).status_code == 200


async def test_it_is_nobody_elses(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem, connect: Any
) -> None:
    engine.say("Hello there.", pause_after=0)
    begun = (await client.post(URL, json=ASK)).json()
    async with connect(system, system.keys.add("ben")) as ben:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert (await ben.request(method, f"{URL}/{begun['id']}{path}")).status_code == 404
    assert (await client.get(f"{URL}/{begun['id']}")).json()["status"] == "in_progress"
    assert (await client.delete(f"{URL}/{begun['id']}")).status_code == 200
    await settled(system)


async def test_off_the_record_it_is_refused(client: httpx.AsyncClient, system: ServingSystem) -> None:
    refused = await client.post(URL, json=ASK, headers={"x-off-the-record": "1"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    await settled(system)


async def test_it_goes_with_its_person(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say("Hello there.", pause_after=0)
    begun = (await client.post(URL, json=ASK)).json()
    await client.post(f"{URL}/{begun['id']}/cancel")
    assert num_rows(system) == 1
    assert (await client.delete("/v1/users/default")).json()["state"] == "done"
    assert num_rows(system) == 0
