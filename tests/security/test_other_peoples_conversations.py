"""Naming somebody else's conversation neither joins it nor takes its place, and erases nothing of it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.security.conftest import Live, chat


def begin(client: httpx.Client) -> str:
    items = [{"role": "user", "content": "a secret"}]
    conversation = client.post("/v1/conversations", json={"items": items}).raise_for_status().json()["id"]
    assert isinstance(conversation, str)
    return conversation


def items_of(client: httpx.Client, conversation: str) -> list[Any]:
    answer = client.get(f"/v1/conversations/{conversation}/items")
    found: list[Any] = answer.raise_for_status().json()["data"]
    return found


def test_a_session_named_like_a_conversation_of_somebody_else_is_another_one(live: Live) -> None:
    with live.client(live.system.keys.add("ann")) as ann, live.client(live.system.keys.add("ben")) as ben:
        conversation = begin(ann)
        named = ben.post("/v1/chat/completions", json=chat(), headers={"x-session-id": conversation})
        assert named.headers["x-session-id"] != conversation
        said = ann.post(
            "/v1/responses", json={"model": "scripted", "conversation": conversation, "input": "Hi"}
        )
        assert said.headers["x-session-id"] == conversation, "the conversation's id names its session"
        ben.delete(f"/v1/sessions/{named.headers['x-session-id']}").raise_for_status()
        assert len(items_of(ann, conversation)) == 3


def test_a_session_that_took_the_name_first_erases_only_itself(live: Live) -> None:
    """As one of an earlier release may have."""
    conversation, items = f"conv_{'0' * 32}", [{"id": "msg_1", "type": "message", "role": "user"}]
    with live.client(live.system.keys.add("ann")) as ann, live.client(live.system.keys.add("ben")) as ben:
        taken = ben.post("/v1/chat/completions", json=chat(), headers={"x-session-id": conversation})
        assert taken.headers["x-session-id"] == conversation
        live.system.gateway.conversations.create(conversation, "ann", {}, items)
        ben.delete(f"/v1/sessions/{conversation}").raise_for_status()
        assert len(items_of(ann, conversation)) == 1


def test_a_search_before_anything_was_indexed_does_not_stop_forgetting(live: Live) -> None:
    with live.client() as owner:
        assert owner.get("/v1/sessions", params={"query": "word"}).json()["data"] == []
        session = owner.post("/v1/chat/completions", json=chat()).headers["x-session-id"]
        assert owner.delete(f"/v1/sessions/{session}").status_code == 200
