"""Custom tools, which take free text, in both dialects that have them; the model knows them as functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from openclaw_rl.testing import ScriptedEngine

SQL = 'SELECT name\nFROM rivers -- "all" of them'
CALL = f"<tool_call>\n{json.dumps({'name': 'sql', 'arguments': {'input': SQL}})}\n</tool_call>"
FUNCTION_CALL = '<tool_call>\n{"name": "look_up", "arguments": {"q": "a"}}\n</tool_call>'
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
CUSTOM = {"name": "sql", "description": "Runs a query."}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": CUSTOM}]
FLAT_TOOLS: list[Any] = [{"type": "function", **FUNCTION}, {"type": "custom", **CUSTOM}]
REGEX = {"type": "grammar", "syntax": "regex", "definition": "^SELECT [a-z]+$"}


@pytest.fixture
def openai(client: httpx.AsyncClient) -> AsyncOpenAI:
    key = client.headers["authorization"].removeprefix("Bearer ")
    return AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=client, max_retries=0)


async def test_chat(openai: AsyncOpenAI, engine: ScriptedEngine, client: httpx.AsyncClient) -> None:
    engine.say(CALL)
    talk: list[Any] = [{"role": "user", "content": "Which rivers?"}]
    first = await openai.chat.completions.create(model="scripted", messages=talk, tools=CHAT_TOOLS)
    (call,) = first.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("sql", SQL)
    assert first.choices[0].finish_reason == "tool_calls"
    talk.append(first.choices[0].message.model_dump(exclude_none=True))
    talk.append({"role": "tool", "tool_call_id": call.id, "content": "Rhine"})
    engine.say("The Rhine.")
    second = await openai.chat.completions.create(model="scripted", messages=talk, tools=CHAT_TOOLS)
    turn = (await client.get(f"/v1/turns/{second.id}")).json()
    assert turn["continues"] == first.id


async def test_chat_streamed_beside_a_function(openai: AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.say(f"{FUNCTION_CALL}\n{CALL}")
    talk: list[Any] = [{"role": "user", "content": "Which rivers?"}]
    stream = await openai.chat.completions.create(
        model="scripted", messages=talk, tools=CHAT_TOOLS, stream=True
    )
    pieces: dict[int, dict[str, Any]] = {}
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            one = pieces.setdefault(call.index, {"type": None, "text": ""})
            one["type"] = call.type or one["type"]
            extra = (call.model_extra or {}).get("custom")
            one["text"] += extra["input"] if extra else (call.function and call.function.arguments) or ""
    assert pieces == {
        0: {"type": "function", "text": '{"q": "a"}'},
        1: {"type": "custom", "text": SQL},
    }


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "sql"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "sql"}}]},
        },
    ],
    ids=["named", "allowed"],
)
async def test_a_forced_call_in_chat_follows_a_regular_expression(
    client: httpx.AsyncClient, engine: ScriptedEngine, choice: dict[str, Any]
) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "^SELECT [a-z]+$"}}
    tools = [CHAT_TOOLS[0], {"type": "custom", "custom": {**CUSTOM, "format": form}}]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    answer = await client.post("/v1/chat/completions", json={**body, "tool_choice": choice})
    assert answer.status_code == 200, answer.text
    grammar = engine.requests[-1].grammar or ""
    assert "SELECT [a-z]+" in grammar
    assert "look_up" not in grammar


async def test_a_custom_call_in_the_history_of_a_client_with_legacy_functions(
    client: httpx.AsyncClient,
) -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": SQL}}
    messages = [
        {"role": "user", "content": "Which rivers?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rhine"},
    ]
    body = {"model": "scripted", "messages": messages, "functions": [FUNCTION]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_a_choice_of_a_tool_that_is_not_there(client: httpx.AsyncClient) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": CHAT_TOOLS[:1]}
    choice = {"type": "custom", "custom": {"name": "sql"}}
    answer = await client.post("/v1/chat/completions", json={**body, "tool_choice": choice})
    assert answer.status_code == 400
    assert "'sql'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(
    openai: AsyncOpenAI, engine: ScriptedEngine, chunks: Callable[[str], Any], client: httpx.AsyncClient,
    stream: bool,
) -> None:  # fmt: skip
    engine.say(CALL)
    if stream:
        body = {"model": "scripted", "input": "Which rivers?", "tools": FLAT_TOOLS, "stream": True}
        events = chunks((await client.post("/v1/responses", json=body)).text)
        said = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
        assert said == [SQL]
        first = events[-1]["response"]
    else:
        parsed = await openai.responses.create(model="scripted", input="Which rivers?", tools=FLAT_TOOLS)
        first = parsed.model_dump(exclude_none=True)
    (item,) = first["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "sql", SQL)
    assert [tool["type"] for tool in first["tools"]] == ["function", "custom"]
    stored = (await client.get(f"/v1/responses/{first['id']}")).json()
    assert stored["output"] == first["output"]
    engine.say("The Rhine.")
    for asked in (
        {"input": [{"role": "user", "content": "Which rivers?"}, item]},
        {
            "input": [
                {"role": "user", "content": "Which rivers?"},
                {"type": "item_reference", "id": item["id"]},
            ]
        },
        {"previous_response_id": first["id"], "input": []},
    ):
        result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Rhine"}
        body = {"model": "scripted", "tools": FLAT_TOOLS, **asked}
        answer = await client.post("/v1/responses", json={**body, "input": [*asked["input"], result]})
        assert answer.status_code == 200, answer.text
        turn = (await client.get(f"/v1/turns/{answer.json()['id']}")).json()
        assert turn["continues"] == first["id"]


async def test_a_forced_call_in_responses_follows_a_regular_expression(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    tool = {"type": "custom", **CUSTOM, "format": REGEX}
    body = {
        "model": "scripted",
        "input": "Hi",
        "tools": [tool],
        "tool_choice": {"type": "custom", "name": "sql"},
    }
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert "SELECT [a-z]+" in (engine.requests[-1].grammar or "")


async def test_of_other_grammars_the_model_is_told(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "SELECT" /[a-z]+/'}
    body = {"model": "scripted", "input": "Hi", "tools": [{"type": "custom", **CUSTOM, "format": form}]}
    answer = await client.post("/v1/responses", json=body)
    assert answer.json()["tools"][0]["description"].endswith('grammar:\nstart: "SELECT" /[a-z]+/')
