"""Anthropic's messages over the scripted engine: blocks, events, tools, errors in their own shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine

URL = "/v1/messages"
Chunks = Callable[[str], list[Any]]
TOOL = {"name": "look_up", "description": "Looks up", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "sea"}}\n</tool_call>'


def ask(text: Any = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


async def test_a_reply_as_one_text(client: httpx.AsyncClient, system: ServingSystem) -> None:
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = await client.post(URL, json=ask(system=[*blocks, {"type": "text", "text": "Be kind."}]))
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply["id"].startswith("msg_")
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "scripted")
    assert reply["content"] == [{"type": "text", "text": "Hello!"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)
    assert reply["usage"]["output_tokens"] == 7
    turn = system.ledgers.serve.load_turn(reply["id"])
    assert turn is not None
    assert turn.messages[0] == {"role": "system", "content": "Be brief.\nBe kind."}
    assert len(turn.prompt_ids) == reply["usage"]["input_tokens"]


async def test_events_come_in_order(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("<think>\nhm\n</think>\n\nSee: " + CALL)
    answer = await client.post(URL, json=ask(stream=True, tools=[TOOL]))
    events = chunks(answer.text)
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    kinds = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in started] == ["thinking", "text", "tool_use"]
    assert started[2]["input"] == {}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "See:"
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"word": "sea"}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert "[DONE]" not in answer.text


async def test_a_tool_is_called_and_answered(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say("Let me see. " + CALL)
    first = await client.post(URL, json=ask("What is the sea?", tools=[TOOL]))
    reply = first.json()
    assert reply["stop_reason"] == "tool_use"
    text, call = reply["content"]
    assert (text["text"], call["name"], call["input"]) == ("Let me see.", "look_up", {"word": "sea"})
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "water"}],
    }
    messages = [
        {"role": "user", "content": "What is the sea?"},
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "in one word"}]},
    ]
    second = await client.post(URL, json={**ask(tools=[TOOL]), "messages": messages})
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    turn = (await client.get(f"/v1/turns/{reply['id']}")).json()
    followed = [(message["role"], message["content"]) for message in turn["next_state"]]
    assert followed == [("tool", "water"), ("user", "in one word")]


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_json_reach_the_client_as_json(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks, stream: bool
) -> None:
    """Cut in the middle of its arguments: a client that parses them must not fail."""
    engine.say(CALL)
    body = ask("x", tools=[TOOL], stream=stream, max_tokens=40)
    first = await client.post(URL, json=body)
    if stream:
        events = chunks(first.text)
        partial = [event["delta"].get("partial_json", "") for event in events if "delta" in event]
        value = json.loads("".join(partial))
        reason = events[-2]["delta"]["stop_reason"]
        block = next(e["content_block"] for e in events if e["type"] == "content_block_start")
    else:
        block = first.json()["content"][0]
        value, reason = block["input"], first.json()["stop_reason"]
    assert reason == "max_tokens"
    assert set(value) == {"invalid_json"}
    messages = [
        *body["messages"],
        {"role": "assistant", "content": [{**block, "input": value}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "bad"}]},
    ]
    second = await client.post(URL, json={**body, "stream": False, "messages": messages})
    assert second.headers["x-session-id"] == first.headers["x-session-id"]


async def test_a_stop_sequence_is_named(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say("one two three")
    reply = (await client.post(URL, json=ask(stop_sequences=["three", "two"]))).json()
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "two")
    assert reply["content"][0]["text"] == "one "


@pytest.mark.parametrize(
    ("choice", "called"),
    [({"type": "auto"}, False), ({"type": "none"}, False), ({"type": "any"}, True),
     ({"type": "tool", "name": "look_up"}, True)],
)  # fmt: skip
async def test_tool_choice(
    client: httpx.AsyncClient, engine: ScriptedEngine, choice: Any, called: bool
) -> None:
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    answer = await client.post(URL, json=ask(tools=[TOOL, server_tool], tool_choice=choice))
    assert answer.status_code == 200, answer.text
    assert bool(engine.requests[-1].grammar) == called


async def test_tools_that_were_searched_for(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    found = [{"type": "tool_reference", "tool_name": "look_up"}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": found}]},
    ]
    answer = await client.post(URL, json={**ask(tools=[TOOL]), "messages": messages})
    assert answer.status_code == 200, answer.text
    turn = await client.get(f"/v1/sessions/{answer.headers['x-session-id']}?text=true")
    assert turn.json()["turns"][0]["input"][-1]["content"] == "The tool look_up can be used now."


async def test_tokens_can_be_counted(client: httpx.AsyncClient) -> None:
    body = ask("How long is this?", tools=[TOOL], system="Be brief.")
    counted = await client.post(
        f"{URL}/count_tokens", json={k: v for k, v in body.items() if k != "max_tokens"}
    )
    answered = await client.post(URL, json=body)
    assert counted.json() == {"input_tokens": answered.json()["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    ("change", "status", "kind", "word"),
    [
        ({"model": "claude-9"}, 404, "not_found_error", "scripted"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "invalid_request_error",
         "prompt is too long"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "alien", "content": "x"}]}, 400, "invalid_request_error", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"url": "u"}}]}]},
         400, "invalid_request_error", "text only"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, 400, "invalid_request_error", "user"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": "no json"}]}]}, 400,
         "invalid_request_error", "input"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tools"),
    ],
)  # fmt: skip
async def test_errors(client: httpx.AsyncClient, change: Any, status: int, kind: str, word: str) -> None:
    answer = await client.post(URL, json={**ask(), **change})
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert word in body["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}])
@pytest.mark.parametrize("path", [URL, f"{URL}/count_tokens"])
async def test_a_wrong_key(system: ServingSystem, connect: Any, headers: dict[str, str], path: str) -> None:
    async with connect(system, key="") as stranger:
        answer = await stranger.post(path, json=ask(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


async def test_the_key_may_be_in_either_header(system: ServingSystem, connect: Any) -> None:
    key = str(system.keys.key_of("default"))
    async with connect(system, key="") as client:
        for headers in ({"x-api-key": key}, {"x-api-key": key, "authorization": "Bearer old"}):
            assert (await client.post(URL, json=ask(), headers=headers)).status_code == 200


async def test_a_failure_ends_the_stream_in_words(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("unlucky", fail_after=2)
    answer = await client.post(URL, json=ask(stream=True))
    assert "event: error\n" in answer.text
    assert chunks(answer.text)[-1]["error"]["type"] == "api_error"


async def test_the_limit_is_said_in_the_same_shape(make_system: Any, connect: Any) -> None:
    system = make_system(max_running=1, max_waiting=0)
    async with connect(system) as client:
        assert system.gateway._slots.take("default", 1) is None
        answer = await client.post(URL, json=ask())
        system.gateway._slots.give_back("default", 1)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
    assert answer.headers["retry-after"]
