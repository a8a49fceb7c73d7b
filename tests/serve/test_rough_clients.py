"""Clients that leave, storm, shout and send rubbish, in every dialect: right answers or right errors.

The server behind the socket is scripted; afterwards its sessions are whole and nothing is left running.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, until

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions")
EMOJI = "👩‍👩‍👧‍👦🏳️‍🌈" * 220
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": oops}}\n</tool_call>'


def ask(path: str, text: str = "Hi", history: bool = False, **more: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}] if history else []
    talk.append({"role": "user", "content": text})
    body: dict[str, Any] = {"model": "scripted", **more}
    if path == "/v1/completions":
        return {**body, "prompt": text, "max_tokens": 40}
    if path == "/v1/responses":
        return {**body, "input": talk}
    return {**body, "messages": talk, "max_tokens": 4000}


def tool(path: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    if path == "/v1/messages":
        return {"name": "f", "input_schema": schema}
    function = {"name": "f", "parameters": schema}
    return (
        {"type": "function", **function}
        if path == "/v1/responses"
        else {"type": "function", "function": function}
    )


async def assert_well(system: ServingSystem) -> None:
    await system.gateway.drain()
    assert system.gateway.num_inflight == 0
    assert system.engine.status().num_running == 0
    health = system.recorder.health()
    assert (health.ok, health.num_unsaved, health.num_lost) == (True, 0, 0)
    assert system.ledgers.serve.check_integrity() == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_killed_in_the_middle(
    path: str,
    stream: bool,
    system: ServingSystem,
    engine: ScriptedEngine,
    client: httpx.AsyncClient,
    raw_call: Any,
) -> None:
    engine.say("a long story", pause_after=6)
    call = raw_call(system, ask(path, stream=stream), path=path)
    await until(lambda: engine.status().num_running == 1, "the engine works")
    if stream:
        await until(lambda: b'"g"' in call.body, "six tokens are out")
    call.leave()
    await call.task
    await assert_well(system)
    assert engine.num_cancelled == 1
    if stream:
        (turn,) = [turn for turns, _ in system.ledgers.serve.iter_sessions() for turn in turns]
        assert (turn.reply["content"], turn.finish_reason) == ("a long", "cancelled")
        shown = (await client.get(f"/v1/turns/{turn.id}")).json()
        assert (shown["state"], shown["delivered"]) == ("excluded", False)
    again = await client.post(path, json=ask(path))
    assert again.status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("history", [True, False])
async def test_a_retry_storm(
    path: str, history: bool, system: ServingSystem, client: httpx.AsyncClient
) -> None:
    body = ask(path, "Hello?", history=history)
    answers = await asyncio.gather(*(client.post(path, json=body) for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    ids = [answer.json()["id"] for answer in answers]
    assert len(set(ids)) == 20
    await assert_well(system)
    stored = [turn for turns, _ in system.ledgers.serve.iter_sessions() for turn in turns]
    assert sorted(turn.id for turn in stored) == sorted(ids)
    for answer in answers:
        turn = (await client.get(f"/v1/turns/{answer.json()['id']}")).json()
        assert turn["session_id"] == answer.headers["x-session-id"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_eight_kilobytes_of_emoji(
    path: str, stream: bool, system: ServingSystem, make_system: Any, connect: Any
) -> None:
    """In and out; the byte tokenizer cuts every one of them into pieces."""
    assert len(EMOJI.encode()) > 8192
    system = make_system()
    engine = system.engine
    engine.context_length = 20_000
    reply = EMOJI[:40]
    engine.say(reply)
    async with connect(system) as client:
        answer = await client.post(path, json=ask(path, EMOJI, stream=stream) | {"max_tokens": 4000})
    assert answer.status_code == 200, answer.text
    assert "\ufffd" not in answer.text
    (turn,) = [turn for turns, _ in system.ledgers.serve.iter_sessions() for turn in turns]
    assert turn.reply["content"] == reply
    assert turn.messages[-1]["content"] == EMOJI
    await assert_well(system)


@pytest.mark.parametrize("path", PATHS[:3])
async def test_a_model_whose_arguments_are_no_json(
    path: str, system: ServingSystem, engine: ScriptedEngine, client: httpx.AsyncClient
) -> None:
    """They reach the client as its dialect allows, and the conversation goes on in its session."""
    engine.say(CALL)
    body = ask(path, "Do it", tools=[tool(path)])
    first = await client.post(path, json=body)
    assert first.status_code == 200
    reply = first.json()
    if path == "/v1/responses":
        answered = [*reply["output"], {"role": "user", "content": "Once more"}]
        body["input"] += answered
    elif path == "/v1/messages":
        body["messages"] += [{"role": "assistant", "content": reply["content"]}]
        body["messages"] += [{"role": "user", "content": "Once more"}]
    else:
        body["messages"] += [reply["choices"][0]["message"], {"role": "user", "content": "Once more"}]
    second = await client.post(path, json=body)
    assert second.status_code == 200, second.text
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    await assert_well(system)


@pytest.mark.parametrize("path", PATHS[:3])
@pytest.mark.parametrize("arguments", ["oops", "", "[1]", "{", '"x"', "null", "NaN"])
async def test_arguments_that_are_no_json_in_the_history(
    path: str, arguments: str, system: ServingSystem, client: httpx.AsyncClient
) -> None:
    body = ask(path, "Do it", tools=[tool(path)])
    if path == "/v1/responses":
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
        body["input"] += [call, {"type": "function_call_output", "call_id": "c", "output": "no"}]
    elif path == "/v1/messages":
        use = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "no"}
        body["messages"] += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    else:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "c", "content": "no"}
        body["messages"] += [{"role": "assistant", "tool_calls": [call]}, result]
    answer = await client.post(path, json=body)
    if path == "/v1/messages":
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    else:
        assert answer.status_code == 200, answer.text
    await assert_well(system)


@pytest.mark.parametrize("path", PATHS)
async def test_a_megabyte(path: str, system: ServingSystem, client: httpx.AsyncClient) -> None:
    answer = await client.post(path, json=ask(path, "word " * 210_000))
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path == "/v1/messages":
        assert error["message"].startswith("prompt is too long")
    else:
        assert error["code"] == "context_length_exceeded"
    assert (await client.post(path, json=ask(path))).status_code == 200
    await assert_well(system)


async def test_one_conversation_in_three_dialects(system: ServingSystem, client: httpx.AsyncClient) -> None:
    """Each continues what the one before was told; the judge sees what came next."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "One"}]
    first = await client.post("/v1/chat/completions", json={"model": "scripted", "messages": talk})
    talk += [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Two"}]
    second = await client.post("/v1/responses", json={"model": "scripted", "input": talk})
    talk += [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Three"}]
    third = await client.post("/v1/messages", json={"model": "scripted", "max_tokens": 20, "messages": talk})
    ids = [answer.json()["id"] for answer in (first, second, third)]
    session = (await client.get(f"/v1/sessions/{first.headers['x-session-id']}")).json()
    assert [turn["id"] for turn in session["turns"]] == ids
    following = [turn["next_state"] and turn["next_state"][0]["content"] for turn in session["turns"]]
    assert following == ["Two", "Three", None]
    later = await client.post("/v1/responses", json={"model": "scripted", "input": "Four",
                                                     "previous_response_id": ids[2]})  # fmt: skip
    assert later.headers["x-session-id"] == first.headers["x-session-id"], "by id, across dialects too"


async def test_a_remembered_hint_is_said_and_its_prompt_can_be_rebuilt(
    make_system: Any, connect: Any
) -> None:
    from openclaw_rl.capture.stored import stored_request

    system = make_system(notes="on")
    system.memory._hints["default"] = ("answer in French",)
    async with connect(system) as client:
        for path in PATHS[:3]:
            reply = (await client.post(path, json=ask(path))).json()
            turn = system.ledgers.serve.load_turn(reply["id"])
            prompt = b"".join(system.gateway.renderer.token_bytes(i) for i in turn.prompt_ids)
            assert b"- answer in French" in prompt
            assert "French" not in json.dumps(turn.messages)
            request = stored_request(turn)
            assert system.gateway.renderer.render(request.messages, request.tools) == turn.prompt_ids
