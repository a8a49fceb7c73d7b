"""Conversations of the Responses API: what is kept, who sees it, and that it goes."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.personal import export_person
from openclaw_rl.capture.prune import prune
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.users import Person, Users

URL, CONVERSATIONS = "/v1/responses", "/v1/conversations"
WORDS = "Rumpelstiltskin"
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "sea"}}\n</tool_call>'
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


def said_by(user: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": user}]


async def create(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post(CONVERSATIONS, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def ask(client: httpx.AsyncClient, conversation: Any, said: Any = "Hi", **more: Any) -> httpx.Response:
    body = {"model": "scripted", "input": said, "conversation": conversation, **more}
    return await client.post(URL, json=body)


async def texts(client: httpx.AsyncClient, conversation: str) -> list[str]:
    listed = (await client.get(f"{CONVERSATIONS}/{conversation}/items", params={"order": "asc"})).json()
    return ["".join(part["text"] for part in item.get("content", [])) for item in listed["data"]]


def num_rows(system: ServingSystem) -> tuple[int, int]:
    with system.ledgers.serve.db.connect() as connection:
        tables = (schema.conversations, schema.conversation_items)
        counts = [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables]
    return counts[0] or 0, counts[1] or 0


async def test_its_items_come_first_and_the_reply_is_added(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem
) -> None:
    conversation = await create(client, items=said_by("My name is Ada."), metadata={"topic": "names"})
    engine.say("Hello Ada.")
    first = await ask(client, conversation, "Say hello", instructions="Be brief")
    assert first.json()["conversation"] == {"id": conversation}
    assert first.headers["x-session-id"] == conversation
    engine.say("Bye Ada.")
    second = await ask(client, {"id": conversation}, "And now goodbye", stream=True)
    assert second.headers["x-session-id"] == conversation
    assert '"conversation":{"id":"conv_' in second.text
    expected = ["My name is Ada.", "Say hello", "Hello Ada.", "And now goodbye", "Bye Ada."]
    assert await texts(client, conversation) == expected
    turn = system.ledgers.serve.load_turn(second.headers["x-request-id"])
    assert turn is not None
    assert [message["content"] for message in turn.messages] == expected[:-1]
    assert turn.continues == first.json()["id"]
    again = (await client.get(f"{URL}/{turn.id}")).json()
    assert again["conversation"] == {"id": conversation}


async def test_a_stated_session_does_not_take_its_place(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    body = {"model": "scripted", "input": "Hi", "conversation": conversation, "session_id": "other"}
    answer = await client.post(URL, json=body, headers={"x-session-id": "other"})
    assert answer.headers["x-session-id"] == conversation


async def test_a_tool_is_called_and_answered(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    conversation = await create(client)
    engine.say(CALL)
    first = (await ask(client, conversation, "What is the sea?", tools=[TOOL])).json()
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "water"}
    answer = await ask(client, conversation, [result], tools=[TOOL])
    assert answer.status_code == 200, answer.text
    path = f"{CONVERSATIONS}/{conversation}/items"
    items = (await client.get(path, params={"order": "asc"})).json()["data"]
    kinds = ["message", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in items] == kinds
    assert items[1] == call
    turn = (await client.get(f"/v1/turns/{first['id']}")).json()
    assert [message["content"] for message in turn["next_state"]] == ["water"]


async def test_a_reply_that_fails_adds_nothing(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    conversation = await create(client)
    engine.say("unlucky", fail_after=2)
    assert (await ask(client, conversation)).status_code == 500
    assert await texts(client, conversation) == []


async def test_items_in_pages(client: httpx.AsyncClient) -> None:
    conversation = await create(client, items=said_by("1") + said_by("2"))
    path = f"{CONVERSATIONS}/{conversation}/items"
    added = (
        await client.post(path, json={"items": [*said_by("3"), {"role": "assistant", "content": "4"}]})
    ).json()
    assert [item["content"][0]["type"] for item in added["data"]] == ["input_text", "output_text"]
    newest = (await client.get(path, params={"limit": 3})).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == ["4", "3", "2"]
    assert newest["has_more"] is True
    rest = (await client.get(path, params={"limit": 3, "after": newest["last_id"]})).json()
    assert ([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]) == (["1"], False)
    third = added["first_id"]
    assert (await client.get(f"{path}/{third}")).json() == added["data"][0]
    assert (await client.delete(f"{path}/{third}")).json()["id"] == conversation
    assert (await client.get(f"{path}/{third}")).status_code == 404
    assert (await client.delete(f"{path}/{third}")).status_code == 404
    assert await texts(client, conversation) == ["1", "2", "4"]


async def test_an_item_keeps_its_id_unless_it_is_taken(client: httpx.AsyncClient) -> None:
    item = {"id": "msg_mine", "type": "message", "role": "user", "content": "x"}
    conversation = await create(client, items=[item, item, {**item, "id": "odd id"}])
    path = f"{CONVERSATIONS}/{conversation}/items"
    ids = [item["id"] for item in (await client.get(path, params={"order": "asc"})).json()["data"]]
    assert ids[0] == "msg_mine"
    assert len(set(ids)) == 3
    assert all(name.startswith("msg_") for name in ids)


async def test_metadata_is_replaced_and_the_conversation_deleted(client: httpx.AsyncClient) -> None:
    conversation = await create(client, metadata={"a": "b"}, items=said_by("x"))
    path = f"{CONVERSATIONS}/{conversation}"
    changed = (await client.post(path, json={"metadata": {"c": "d"}})).json()
    assert changed["metadata"] == {"c": "d"}
    assert (await client.get(path)).json() == changed
    deleted = await client.delete(path)
    assert deleted.json() == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    assert (await client.get(path)).status_code == 404
    assert (await ask(client, conversation)).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [{"type": "web_search_call"}]}, "items[0]"),
        ("", {"items": [{"type": "item_reference", "id": "msg_x"}]}, "items[0]"),
        ("", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ("", {"metadata": {"k" * 65: "v"}}, None),
        ("", {"metadata": {"k": "v" * 513}}, "metadata.k"),
        ("", {"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ("/items", {}, "items"),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    client: httpx.AsyncClient, path: str, body: Any, param: str | None
) -> None:
    conversation = f"/{await create(client)}" if path else ""
    answer = await client.post(f"{CONVERSATIONS}{conversation}{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert param is None or answer.json()["error"]["param"] == param


async def test_one_history_at_a_time(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    first = (await ask(client, conversation)).json()
    both = await ask(client, conversation, previous_response_id=first["id"])
    assert (both.status_code, both.json()["error"]["code"]) == (400, "mutually_exclusive_parameters")


async def test_what_is_not_to_be_kept_is_refused(client: httpx.AsyncClient, system: ServingSystem) -> None:
    conversation, off = await create(client), {"x-off-the-record": "1"}
    before = num_rows(system)
    refused = await ask(client, conversation, store=False)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
    body = {"model": "scripted", "input": WORDS, "conversation": conversation}
    refused = await client.post(URL, json=body, headers=off)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")
    assert (await client.post(CONVERSATIONS, json={}, headers=off)).status_code == 400
    Users.in_home(system.config.people).change("default", off_the_record=True)
    assert (await ask(client, conversation, WORDS)).status_code == 400
    items = f"{CONVERSATIONS}/{conversation}/items"
    assert (await client.post(items, json={"items": said_by(WORDS)})).status_code == 400
    assert num_rows(system) == before
    assert system.gateway.num_inflight == 0


async def test_secrets_are_masked(client: httpx.AsyncClient) -> None:
    secret = "AKIA" + "QYLPMN5HFIQR7XYA"
    conversation = await create(client, items=said_by(f"my key is {secret}"))
    await ask(client, conversation, f"again: {secret}")
    kept = await texts(client, conversation)
    assert len(kept) == 3
    assert not any(secret in text for text in kept)


async def test_it_survives_a_restart(tmp_path: Path, connect: Any) -> None:
    first = scripted_system(tmp_path / "home")
    async with connect(first) as client:
        conversation = await create(client, items=said_by("Remember this."))
        await ask(client, conversation, "Hi")
    await first.close()
    second = scripted_system(tmp_path / "home")
    async with connect(second) as client:
        assert (await ask(client, conversation, "Again")).headers["x-session-id"] == conversation
        assert await texts(client, conversation) == ["Remember this.", "Hi", "Hello!", "Again", "Hello!"]
    await second.close()


# --- how it goes ---------------------------------------------------------------------------------


def spelled(home: Path) -> list[str]:
    return [str(path) for path in home.rglob("*") if path.is_file() and WORDS.encode() in path.read_bytes()]


async def test_it_goes_with_its_person(
    client: httpx.AsyncClient, system: ServingSystem, connect: Any
) -> None:
    async with connect(system, system.keys.add("ben")) as ben:
        await create(ben, items=said_by("Ben's own"))
    talked = await create(client, items=said_by(f"I am {WORDS}."))
    await ask(client, talked, f"Who is {WORDS}?")
    await create(client, metadata={"about": WORDS})
    await system.gateway.drain()
    assert spelled(system.config.home)
    receipt = await client.delete("/v1/users/default")
    assert receipt.json()["state"] == "done", receipt.text
    assert "conversations" not in receipt.json()
    assert num_rows(system) == (1, 1)
    assert spelled(system.config.home) == []


async def test_one_that_was_never_answered_goes_with_its_person(
    client: httpx.AsyncClient, system: ServingSystem
) -> None:
    await create(client, items=said_by(WORDS))
    assert (await client.delete("/v1/users/default")).json()["state"] == "done"
    assert num_rows(system) == (0, 0)
    assert spelled(system.config.home) == []


async def test_it_goes_with_its_session(client: httpx.AsyncClient, system: ServingSystem) -> None:
    conversation = await create(client, items=said_by(WORDS))
    await ask(client, conversation)
    await system.gateway.drain()
    assert (await client.delete(f"/v1/sessions/{conversation}")).status_code == 200
    assert num_rows(system) == (0, 0)
    assert spelled(system.config.home) == []


async def test_a_turn_takes_what_was_said_from_it_on(
    client: httpx.AsyncClient, system: ServingSystem
) -> None:
    conversation = await create(client)
    await ask(client, conversation, "first")
    await client.post(f"{CONVERSATIONS}/{conversation}/items", json={"items": said_by(WORDS)})
    second = (await ask(client, conversation, f"second {WORDS}")).json()["id"]
    await ask(client, conversation, "third")
    await system.gateway.drain()
    assert (await client.delete(f"/v1/turns/{second}")).status_code == 200
    assert await texts(client, conversation) == ["first", "Hello!"]
    assert spelled(system.config.home) == []
    assert (await ask(client, conversation, "go on")).status_code == 200


async def test_prunes_take_it(client: httpx.AsyncClient, system: ServingSystem) -> None:
    conversation = await create(client, items=said_by(WORDS))
    await ask(client, conversation)
    await create(client, items=said_by(f"never answered, {WORDS}"))
    young = await create(client)
    await system.gateway.drain()
    with system.ledgers.serve.writing() as connection:
        old = time.time() - 100 * 86400
        connection.execute(schema.turns.update().values(created_at=old))
        mine = schema.conversations.c.id != young
        connection.execute(schema.conversations.update().where(mine).values(used_at=old))
    prune(system.ledgers.serve, older_than_s=90 * 86400, learn_ledger=system.ledgers.learn)
    assert num_rows(system) == (1, 0)
    assert spelled(system.config.home) == []


async def test_it_is_part_of_a_person_s_archive(
    client: httpx.AsyncClient, system: ServingSystem, tmp_path: Path
) -> None:
    await create(client, items=said_by(WORDS))
    export_person(system.ledgers, "default", Person(), tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert WORDS in archive.read("conversations.jsonl").decode()
