"""Whatever is wrong with a request is said in OpenAI's error shape, with the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.errors import EngineAway
from openclaw_rl.processes.serving_system import ServingSystem

Ask = Callable[..., dict[str, Any]]
URL = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["type"] == ("invalid_request_error" if status < 429 else "rate_limit_error")
    return error


@pytest.mark.parametrize("body", [b"", b"{", b"[1, 2]", b'"text"', b"null", b"\xff\xfe{}", b"[" * 100_000])
async def test_a_body_that_is_no_json_object(client: httpx.AsyncClient, body: bytes) -> None:
    assert error_of(await client.post(URL, content=body, headers=JSON), 400)["message"]


async def test_invalid_json_is_called_that(client: httpx.AsyncClient) -> None:
    error = error_of(await client.post(URL, content=b'{"model": ', headers=JSON), 400)
    assert "not valid JSON" in error["message"]


async def test_an_unknown_model_names_the_known_one(client: httpx.AsyncClient, ask: Ask) -> None:
    error = error_of(await client.post(URL, json=ask(model="gpt-9")), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'scripted'" in error["message"]


@pytest.mark.parametrize("model", ["scripted@7", "scripted@", "scripted@x", "scripted@-1", "scripted@²"])
async def test_an_unknown_policy_version(client: httpx.AsyncClient, ask: Ask, model: str) -> None:
    answer = await client.post(URL, json=ask(model=model))
    if model == "scripted@":
        assert answer.status_code == 200, "an empty version is the one being served"
        return
    assert "scripted@0" in error_of(answer, 404)["message"]


async def test_an_image_is_refused_in_words(client: httpx.AsyncClient, ask: Ask) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    body = ask(messages=[{"role": "system", "content": "Be kind"}, {"role": "user", "content": parts}])
    error = error_of(await client.post(URL, json=body), 400)
    assert error["param"] == "messages[1].content"
    assert "image_url" in error["message"]


async def test_a_prompt_over_the_context_length_gets_both_numbers(
    client: httpx.AsyncClient, ask: Ask, system: ServingSystem
) -> None:
    text = "x" * 5000
    error = error_of(await client.post(URL, json=ask(text)), 400)
    prompt = system.gateway.renderer.render([{"role": "user", "content": text}])
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {system.engine.context_length} tokens" in error["message"]
    assert f"resulted in {len(prompt)} tokens" in error["message"]


async def test_max_tokens_beyond_the_context_are_cut_to_the_room(
    client: httpx.AsyncClient, ask: Ask, system: ServingSystem, engine: Any
) -> None:
    answer = await client.post(URL, json=ask(max_tokens=10**12))
    room = system.engine.context_length - answer.json()["usage"]["prompt_tokens"]
    assert engine.requests[-1].sampling.max_tokens == room


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "alien", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"content": ""}]}, "messages.0.role"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, None),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"stream": "perhaps"}, "stream"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ],
)
async def test_a_wrong_value_names_its_field(
    client: httpx.AsyncClient, ask: Ask, change: dict[str, Any], param: str | None
) -> None:
    error = error_of(await client.post(URL, json=ask(**change)), 400)
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens", "seed", "top_k", "n"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "1" * 5000])
async def test_numbers_that_are_none(client: httpx.AsyncClient, ask: Ask, name: str, value: str) -> None:
    body = json.dumps(ask(**{name: "HERE"})).replace('"HERE"', value)
    answer = await client.post(URL, content=body, headers=JSON)
    if name in ("max_tokens", "top_k") and len(value) == 401:
        assert answer.status_code == 200, "as many as there are"
    else:
        error_of(answer, 400)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405),
        ("GET", "/v1/turns/none", 404), ("GET", "/v1/sessions/none", 404), ("GET", "/v1/models/none", 404),
        ("GET", "/v1/sessions?limit=0", 400), ("GET", "/v1/sessions?limit=x", 400),
    ],
)  # fmt: skip
async def test_other_routes_use_the_same_shape(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    assert error_of(await client.request(method, path), status)["message"]


async def test_at_the_limit_the_next_one_gets_429_and_nothing_else_is_refused(
    make_system: Any, connect: Any, ask: Ask
) -> None:
    import asyncio

    from openclaw_rl.testing import until

    system = make_system(max_running=1, max_waiting=2)
    async with connect(system) as client:
        for _ in range(3):
            system.engine.say("slow", pause_after=1)
        waiting = [asyncio.create_task(client.post(URL, json=ask())) for _ in range(3)]
        await until(lambda: system.gateway.num_inflight == 3, "three requests are in flight")
        refused = await client.post(URL, json=ask())
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get("/v1/status")).status_code == 200
        system.engine.resume.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 3
        assert (await client.post(URL, json=ask())).status_code == 200
    assert system.gateway.num_inflight == 0


async def test_n_counts_as_n_places(make_system: Any, connect: Any, ask: Ask) -> None:
    system = make_system(max_running=1, max_waiting=2)
    async with connect(system) as client:
        assert (await client.post(URL, json=ask(n=3))).status_code == 200
        error_of(await client.post(URL, json=ask(n=4)), 429)


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_fail_give_their_place_back(
    make_system: Any, connect: Any, ask: Ask, stream: bool
) -> None:
    system = make_system(max_running=1, max_waiting=0)
    async with connect(system) as client:
        for trouble in ({"fail_after": 0}, {"fail_after": 2}):
            system.engine.say("unlucky", **trouble)
            await client.post(URL, json=ask(stream=stream))
            assert system.gateway.num_inflight == 0
        assert (await client.post(URL, json=ask())).status_code == 200


async def test_an_engine_that_fails_is_a_500_in_the_same_shape(
    client: httpx.AsyncClient, ask: Ask, engine: Any
) -> None:
    engine.say("unlucky", fail_after=2)
    answer = await client.post(URL, json=ask())
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "scripted engine" not in answer.text


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions"])
async def test_an_engine_that_is_away_is_a_503_also_where_a_stream_was_asked_for(
    client: httpx.AsyncClient, system: ServingSystem, engine: Any, path: str, stream: bool, choices: int
) -> None:
    """Clients try such an answer again by themselves; a stream that says an error they do not."""
    body = {"model": "scripted", "stream": stream, "max_tokens": 8}
    body |= {"n": choices} if path.endswith("completions") else {}
    said: dict[str, Any] = {"input": "Hi"} if path == "responses" else {"prompt": "Hi"}
    said = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path or path == "messages" else said
    for _ in range(choices):
        engine.say("unlucky", fail_after=0, error=EngineAway("its server was killed"))
    answer = await client.post(f"/v1/{path}", json={**body, **said})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "its server was killed" in answer.json()["error"]["message"]
    assert (system.gateway.num_inflight, engine.status().num_running) == (0, 0)
    await system.gateway.drain()
    assert system.ledgers.serve.counts()["turns"] == 0


@pytest.mark.parametrize(
    "session", ["会议", "a\r\nx-evil: 1", "\x00", " padded ", "tab\there", "\ud800", "é"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_any_session_id_is_answered(
    client: httpx.AsyncClient, ask: Ask, session: str, stream: bool
) -> None:
    body = json.dumps(ask(session_id=session, stream=stream))
    answer = await client.post(URL, content=body, headers=JSON)
    assert answer.status_code == 200
    assert "x-evil" not in answer.headers
    assert answer.headers["x-session-id"].isascii()
    assert answer.headers["x-session-id"].isprintable()
    assert answer.headers["x-session-id"].strip() == answer.headers["x-session-id"]


@pytest.mark.parametrize("depth", [50, 300, 900, 2000, 50_000])
@pytest.mark.parametrize("place", ["field", "parameters", "arguments", "metadata"])
async def test_deep_nesting_is_answered_or_refused(
    client: httpx.AsyncClient, ask: Ask, system: ServingSystem, depth: int, place: str
) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    if place == "arguments":
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        body = json.dumps(ask(messages=messages))
    elif place == "parameters":
        function = {"name": "f", "parameters": "HERE"}
        body = json.dumps(ask(tools=[{"type": "function", "function": function}])).replace('"HERE"', deep)
    else:
        body = json.dumps(ask(**{place: "HERE"})).replace('"HERE"', deep)
    answer = await client.post(URL, content=body, headers=JSON)
    if answer.status_code != 200:
        error_of(answer, 400)
    assert system.recorder.health().ok, "one odd request must not stop the recording"
    assert (await client.post(URL, json=ask())).status_code == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
async def test_a_base_url_without_v1_is_told_the_right_one(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={})
    assert answer.status_code == 404
    assert answer.json().get("type") == ("error" if path == "/messages" else None)
    said = answer.json()["error"]["message"]
    assert said.endswith("end the client's base URL with /v1: http://test/v1")
    assert "base URL" not in (await client.post("/v1/nothing", json={})).text
