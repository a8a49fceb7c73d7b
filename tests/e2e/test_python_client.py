"""The official Python client against the running server and the real model."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import httpx
import openai
import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import ServerProcess, wait_until

MODEL = "SmolLM2-135M-Instruct"
HELLO: list[Any] = [{"role": "user", "content": "Name three colours."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
#: Keeps the model from ending a reply early, however fast the machine is.
ENDLESS: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "many",
        "schema": {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 200},
    },
}


def weather_talk() -> list[Any]:
    """The default model is small: it calls a tool when the conversation shows how."""
    talk: list[Any] = []
    for index, city in enumerate(("London", "Rome", "Berlin")):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        call = {"id": f"c{index}", "type": "function", "function": function}
        talk += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{index}", "content": "sunny"},
            {"role": "assistant", "content": f"It is sunny in {city}."},
        ]
    return [*talk, {"role": "user", "content": "What is the weather in Paris?"}]


def test_a_reply_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    stream = openai_client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage == whole.usage
    assert whole.usage is not None
    assert 1 <= whole.usage.completion_tokens <= 12


async def test_the_async_client(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, temperature=0)
        text = ""
        async with client.chat.completions.stream(
            model=MODEL, messages=HELLO, max_tokens=8, temperature=0
        ) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    text += event.delta
        assert text == whole.choices[0].message.content != ""
        assert [model.id async for model in client.models.list()] == [MODEL, f"{MODEL}@0"]


def test_a_seed_repeats_a_reply(openai_client: openai.OpenAI) -> None:
    def sample(seed: int) -> str | None:
        reply = openai_client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=10, temperature=1.0, seed=seed
        )
        return reply.choices[0].message.content

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_a_tool_is_called(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(
        model=MODEL, messages=weather_talk(), tools=[WEATHER], temperature=0, max_tokens=64
    )
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=weather_talk(), tools=[WEATHER], temperature=0, max_tokens=64, stream=True
    )
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    chunks = list(stream)
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].function is not None
    assert pieces[0].function.name == "get_weather"
    assert len(pieces) > 3, "arguments come as they are sampled"
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert arguments == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_tool_can_be_demanded(openai_client: openai.OpenAI) -> None:
    reply = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=80
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}


def test_a_reply_follows_its_schema(openai_client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    shape: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    reply = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format=shape, max_tokens=60
    )
    answer = json.loads(reply.choices[0].message.content or "")
    assert answer["colour"] in ("red", "green")
    assert answer["count"] <= 9


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7}, {"type": "object", "properties": 3}, {"$ref": "http://example.com/x"}, {"enum": []},
        {"$ref": "#/nowhere"}, {"pattern": "("}, {"type": "string", "pattern": "(?<=a)b"}, {"not": {}},
        {"anyOf": []}, {"type": "string", "minLength": 10**9}, {"\ud800": 1}, {"x-guidance": {"a": 1}},
        {"allOf": [{"type": "string"}, {"type": "null"}]}, {"minimum": 5, "maximum": 1, "type": "integer"},
    ],
)  # fmt: skip
def test_an_odd_schema_is_answered_or_refused(http: httpx.Client, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for change in ({"response_format": shape}, {"tools": [tool], "tool_choice": "required"}):
        body = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 3, **change})
        answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["message"]


def test_several_choices(openai_client: openai.OpenAI, http: httpx.Client) -> None:
    reply = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=6, n=3, temperature=1.0, seed=5
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    for index in range(3):
        assert http.get(f"/v1/turns/{reply.id}.{index}").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_in_the_ledger(
    openai_client: openai.OpenAI, server: ServerProcess, stream: bool
) -> None:
    """What was streamed is what was stored, token by token."""
    options: dict[str, Any] = {"max_tokens": 10, "logprobs": True, "top_logprobs": 3}
    if stream:
        chunks = list(
            openai_client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **options)
        )
        reply_id = chunks[0].id
        parts = [chunk.choices[0].logprobs for chunk in chunks]
        entries = [entry for part in parts if part for entry in part.content or []]
    else:
        reply = openai_client.chat.completions.create(model=MODEL, messages=HELLO, **options)
        assert reply.choices[0].logprobs is not None
        reply_id, entries = reply.id, reply.choices[0].logprobs.content or []
    ledger = ServeLedger(sqlite_url(server.home / "serve.db"))
    turn = ledger.load_turn(reply_id)
    ledger.close()
    assert turn is not None
    shown = turn.tokens[: len(entries)]
    assert len(turn.tokens) - len(entries) in (0, 1), "only the token that ends the reply is not shown"
    assert [entry.logprob for entry in entries] == pytest.approx([token.logprob for token in shown])
    for entry, token in zip(entries, shown, strict=True):
        top = [alternative.logprob for alternative in entry.top_logprobs]
        assert top == pytest.approx(token.top_logprobs[:3])
        assert top == sorted(top, reverse=True)
    text = b"".join(bytes(entry.bytes or []) for entry in entries).decode(errors="replace")
    assert turn.reply["content"] == text


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 9}, openai.BadRequestError, "invalid_value"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError,
         "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, openai.BadRequestError,
         "unsupported_content"),
    ],
)  # fmt: skip
def test_errors_become_the_client_s_exceptions(
    openai_client: openai.OpenAI, change: dict[str, Any], kind: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(kind) as raised:
        openai_client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **change})
    assert raised.value.code == code


def test_a_wrong_key_is_an_authentication_error(server: ServerProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_streaming_is_real_and_leaving_a_stream_frees_the_engine(
    openai_client: openai.OpenAI, http: httpx.Client
) -> None:
    """Chunks arrive while the reply is being sampled, one for each token, not together at its end."""
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2000, stream=True, response_format=ENDLESS
    )
    for _ in range(40):
        chunk = next(iter(stream))
        assert chunk.choices[0].finish_reason is None
    assert http.get("/v1/status").json()["queues"]["running"] == 1
    assert _turn(http, chunk.id) is None
    stream.close()
    wait_until(lambda: _is_idle(http), "the engine is free")
    turn = wait_until(lambda: _turn(http, chunk.id), "the turn that was left is recorded")
    assert turn["finish_reason"] == "cancelled"
    assert turn["delivered"] is not True
    assert 39 <= turn["completion_tokens"] < 2000


def test_leaving_a_reply_that_is_not_streamed_frees_the_engine(
    server: ServerProcess, http: httpx.Client
) -> None:
    before = http.get("/v1/status").json()
    address = httpx.URL(server.url)
    headers = {"authorization": f"Bearer {server.key}", "content-type": "application/json"}
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2000, "n": 4, "response_format": ENDLESS}
    with closing(HTTPConnection(address.host, address.port, timeout=120)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        # More than four prompts: all of them have been sampled from, since they grow in step.
        enough = before["engine"]["cached_tokens"] + 4 * 60
        wait_until(lambda: _holds(http, running=4, tokens=enough), "all four replies are on their way")
    wait_until(lambda: _is_idle(http), "the engine is free")
    wait_until(
        lambda: http.get("/v1/status").json()["funnel"]["turns"] == before["funnel"]["turns"] + 4,
        "all four are recorded",
    )


def test_a_conversation_keeps_its_session(openai_client: openai.OpenAI, http: httpx.Client) -> None:
    talk: list[Any] = [{"role": "user", "content": "My name is Ada, remember it well."}]
    ids, sessions = [], []
    for question in ("What is my name?", "And once more?", None):
        raw = openai_client.chat.completions.with_raw_response.create(
            model=MODEL, messages=talk, max_tokens=8
        )
        reply = raw.parse()
        ids.append(reply.id)
        sessions.append(raw.headers["x-session-id"])
        assert raw.headers["x-policy-version"] == "0"
        talk += [
            reply.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": question},
        ]
    assert len(set(sessions)) == 1
    session = http.get(f"/v1/sessions/{sessions[0]}").json()
    assert [turn["id"] for turn in session["turns"]] == ids
    assert [turn["continues"] for turn in session["turns"]] == [None, *ids[:-1]]
    turn = http.get(f"/v1/turns/{ids[1]}").json()
    assert turn == {**session["turns"][1], "delivered": turn["delivered"]}
    assert turn["session_id"] == sessions[0]
    assert turn["completion_tokens"] >= 1


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-40}, {"temperature": 1e-9}, {"top_p": 1e-30}, {"top_k": 10**30},
        {"seed": -(2**63), "n": 2}, {"seed": 2**63 - 1, "n": 2}, {"logprobs": True, "top_logprobs": 20},
        {"temperature": 2, "top_k": 1, "top_p": 0.01},
    ],
)  # fmt: skip
def test_extreme_sampling_is_answered(http: httpx.Client, sampling: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, **sampling}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] >= 1


def test_everything_left_behind_is_counted(http: httpx.Client) -> None:
    status = http.get("/v1/status").json()
    assert status["status"] == "ok"
    assert (status["ledger"]["num_lost"], status["ledger"]["num_unsaved"]) == (0, 0)
    assert status["funnel"]["turns"] == sum(status["funnel"]["by_state"].values()) > 0


def _is_idle(http: httpx.Client) -> bool:
    queues = http.get("/v1/status").json()["queues"]
    return bool(queues["running"] == queues["waiting"] == 0)


def _holds(http: httpx.Client, running: int, tokens: int) -> bool:
    status = http.get("/v1/status").json()
    return bool(status["queues"]["running"] == running and status["engine"]["cached_tokens"] >= tokens)


def _turn(http: httpx.Client, turn_id: str) -> dict[str, Any] | None:
    answer = http.get(f"/v1/turns/{turn_id}")
    return answer.json() if answer.status_code == 200 else None
