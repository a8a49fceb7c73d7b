"""Fields of chat completions and messages that few clients send and some cannot do without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ScriptedEngine

URL = "/v1/chat/completions"
Body = dict[str, Any]
Ask = Callable[..., Body]
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "sea"}}\n</tool_call>'


def tool(name: str) -> Body:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def allowed(mode: str, *names: str) -> Body:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_some_tools_may_be_called(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Ask, mode: str
) -> None:
    body = ask(tools=[tool("look_up"), tool("forget")], tool_choice=allowed(mode, "look_up"))
    answer = await client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    with_one = await client.post(URL, json=ask(tools=[tool("look_up")]))
    assert answer.json()["usage"]["prompt_tokens"] == with_one.json()["usage"]["prompt_tokens"]
    grammar = engine.requests[0].grammar
    assert (grammar is None) is (mode == "auto")
    assert "forget" not in (grammar or "")


async def test_a_tool_that_is_no_function_is_refused_with_a_way_out(
    client: httpx.AsyncClient, ask: Ask
) -> None:
    answer = await client.post(URL, json=ask(tools=[tool("f"), {"type": "web_search"}]))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools[1]")
    assert "Only functions and custom tools" in error["message"]
    assert "'web_search'" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_functions_from_before_there_were_tools(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Ask, chunks: Any, stream: bool
) -> None:
    functions = [{"name": "look_up", "parameters": {"type": "object"}}]
    engine.say(CALL)
    options = {"functions": functions, "function_call": {"name": "look_up"}, "stream": stream}
    answer = await client.post(URL, json=ask("What is the sea?", **options))
    assert answer.status_code == 200, answer.text
    if stream:
        choices = [chunk["choices"][0] for chunk in chunks(answer.text)[:-1]]
        pieces = [
            choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]
        ]
        called = {
            "name": "".join(piece.get("name") or "" for piece in pieces),
            "arguments": "".join(piece["arguments"] for piece in pieces),
        }
        reason = choices[-1]["finish_reason"]
        assert not any("tool_calls" in choice["delta"] for choice in choices)
    else:
        (choice,) = answer.json()["choices"]
        called, reason = choice["message"]["function_call"], choice["finish_reason"]
        assert "tool_calls" not in choice["message"]
    assert (called["name"], json.loads(called["arguments"])) == ("look_up", {"word": "sea"})
    assert reason == "function_call"
    assert engine.requests[0].grammar is not None
    talk = [
        {"role": "user", "content": "What is the sea?"},
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "look_up", "content": "Water."},
    ]
    second = await client.post(URL, json={"model": "scripted", "messages": talk, "functions": functions})
    assert second.status_code == 200, second.text
    assert second.headers["x-session-id"] == answer.headers["x-session-id"]


async def test_a_forced_call_does_not_begin_with_a_text(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Ask, chunks: Any
) -> None:
    """Vercel's SDK takes an empty text for the beginning of one."""
    engine.say(CALL)
    options = {"tools": [tool("look_up")], "tool_choice": "required", "stream": True}
    answer = await client.post(URL, json=ask(**options))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(answer.text)[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert [delta["content"] for delta in deltas if delta.get("content") is not None] == []


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": None}])
async def test_a_user_message_without_content(client: httpx.AsyncClient, message: Body) -> None:
    answer = await client.post(URL, json={"model": "scripted", "messages": [message]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[0].content")
    assert "needs content" in error["message"]


async def test_how_to_sample_reaches_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Ask
) -> None:
    options = {"presence_penalty": 0.5, "frequency_penalty": -1, "min_p": 0.1, "top_p": 0}
    answer = await client.post(URL, json=ask(logit_bias={"65": -100, "66": 5}, **options))
    assert answer.status_code == 200, answer.text
    sampling = engine.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
    assert (sampling.min_p, sampling.top_p, sampling.logit_bias) == (0.1, 0, {"65": -100, "66": 5})


@pytest.mark.parametrize(
    "options",
    [{"logit_bias": {"a": 1}}, {"logit_bias": {"1": 101}}, {"presence_penalty": 3}, {"min_p": 2}],
)
async def test_what_cannot_be_sampled_is_refused(client: httpx.AsyncClient, ask: Ask, options: Body) -> None:
    answer = await client.post(URL, json=ask(**options))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(next(iter(options)))


async def test_anthropic_s_structured_output(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """What ``messages.parse()`` sends."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    body = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "Where?"}]}
    for asked in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        engine.say('{"city": "Rome"}')
        answer = await client.post("/v1/messages", json={**body, **asked})
        assert answer.status_code == 200, answer.text
        assert answer.json()["content"] == [{"type": "text", "text": '{"city": "Rome"}'}]
        assert '"city"' in (engine.requests[-1].grammar or "")


async def test_embeddings_are_refused_by_name(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"model": "scripted", "input": "Hi"})
    assert answer.status_code == 404
    assert "embedding model" in answer.json()["error"]["message"]


async def test_pages_of_an_allowed_origin_may_ask(make_system: Any, connect: Any, ask: Ask) -> None:
    origin = "https://chat.example.org"
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    preflight["access-control-request-headers"] = "authorization,content-type,x-session-id"
    async with connect(make_system(allow_origin=f"{origin}, https://other.example.org")) as client:
        allowed = await client.options(URL, headers={**preflight, "authorization": ""})
        answer = await client.post(URL, json=ask(), headers={"origin": origin})
        refused = await client.post(URL, json=ask(), headers={"origin": "https://evil.example.org"})
    assert allowed.status_code == 200, allowed.text
    assert allowed.headers["access-control-allow-origin"] == origin
    assert "x-session-id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in refused.headers
    async with connect(make_system()) as client:
        answer = await client.post(URL, json=ask(), headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_of_no_tokens_at_all_is_an_empty_one(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Ask, chunks: Any, stream: bool
) -> None:
    """Some servers of models leave the token out that ends a reply; that was a 500."""
    engine.say([])
    answer = await client.post(URL, json=ask(stream=stream))
    assert answer.status_code == 200, answer.text
    if stream:
        sent = [choice for chunk in chunks(answer.text)[:-1] for choice in chunk["choices"]]
        assert [choice["finish_reason"] for choice in sent][-1] == "stop"
        assert not any(choice["delta"].get("content") for choice in sent)
    else:
        [choice] = answer.json()["choices"]
        assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "stop")
        assert answer.json()["usage"]["completion_tokens"] == 0
