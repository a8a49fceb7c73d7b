"""The chat-completions dialect: what goes out is what the engine sampled, in OpenAI's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, until
from openclaw_rl.types import Weights

Ask = Callable[..., dict[str, Any]]
Chunks = Callable[[str], list[Any]]
URL = "/v1/chat/completions"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def joined(events: list[Any], name: str = "content", choice: int = 0) -> str:
    choices = [c for event in events[:-1] for c in event["choices"] if c["index"] == choice]
    return "".join(c["delta"].get(name) or "" for c in choices)


async def test_a_plain_reply(client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine) -> None:
    engine.say("Grüße, 世界 🌍")
    answer = await client.post(URL, json=ask())
    reply = answer.json()
    assert (reply["object"], reply["model"]) == ("chat.completion", "scripted")
    (choice,) = reply["choices"]
    message = {"role": "assistant", "content": "Grüße, 世界 🌍", "refusal": None}
    assert choice == {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    completion = len("Grüße, 世界 🌍".encode()) + 1
    assert reply["usage"]["completion_tokens"] == completion
    assert reply["usage"]["total_tokens"] == completion + len(engine.requests[0].prompt_ids)
    assert answer.headers["x-policy-version"] == "0"
    assert answer.headers["x-session-id"].startswith("sess-")


async def test_streamed_text_is_whole_characters_and_ends_with_done(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("Grüße, 世界 🌍")
    answer = await client.post(URL, json=ask(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = chunks(answer.text)
    assert events[-1] == "[DONE]"
    assert joined(events) == "Grüße, 世界 🌍"
    assert len({event["id"] for event in events[:-1]}) == 1
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "G"}
    assert [event["choices"][0]["finish_reason"] for event in events[-3:-1]] == [None, "stop"]
    assert "usage" not in events[0]
    assert not any("�" in json.dumps(event, ensure_ascii=False) for event in events)


async def test_the_first_chunk_leaves_with_the_first_token(
    system: ServingSystem, ask: Ask, engine: ScriptedEngine, raw_call: Any
) -> None:
    engine.say("slow", pause_after=1)
    call = raw_call(system, ask(stream=True))
    await until(lambda: b'"content":"s"' in call.body, "the first token's chunk is out")
    assert engine.status().num_running == 1
    engine.resume.set()
    await call.task
    assert call.body.endswith(b"data: [DONE]\n\n")


async def test_usage_in_the_stream_comes_last_and_alone(
    client: httpx.AsyncClient, ask: Ask, chunks: Chunks
) -> None:
    body = ask(stream=True, stream_options={"include_usage": True})
    *events, usage, done = chunks((await client.post(URL, json=body)).text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len("Hello!") + 1
    assert all(event["usage"] is None for event in events)


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_cut_the_reply(
    client: httpx.AsyncClient, ask: Ask, chunks: Chunks, stream: bool
) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = await client.post(URL, json=ask(**{name: 3}, stream=stream))
        if stream:
            events = chunks(answer.text)
            assert (joined(events), events[-2]["choices"][0]["finish_reason"]) == ("Hel", "length")
        else:
            choice = answer.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")


async def test_a_cut_character_is_never_sent_in_half(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.say("aß")
    reply = (await client.post(URL, json=ask(max_tokens=2))).json()
    assert reply["choices"][0]["message"]["content"].encode("utf-8", "strict").startswith(b"a")
    assert reply["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "shown"), [("END", "one "), (["nope", "two"], "one END "), ("missing", None), (["世"], None)]
)
async def test_stop_strings_across_token_borders(
    client: httpx.AsyncClient,
    ask: Ask,
    engine: ScriptedEngine,
    chunks: Chunks,
    stop: Any,
    shown: str | None,
    stream: bool,
) -> None:
    engine.say("one END two")
    answer = await client.post(URL, json=ask(stop=stop, stream=stream))
    content = joined(chunks(answer.text)) if stream else answer.json()["choices"][0]["message"]["content"]
    assert content == ("one END two" if shown is None else shown)


async def test_a_stop_string_ends_the_engine_s_work(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say("one END two" * 20)
    reply = (await client.post(URL, json=ask(stop="END"))).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == len("one END")
    assert engine.num_cancelled == 1
    turn = system.ledgers.serve.load_turn(reply["id"])
    assert turn is not None
    assert len(turn.tokens) == len("one END"), "everything sampled is kept, shown or not"
    assert (turn.reply["content"], turn.finish_reason) == ("one ", "stop")


async def test_several_choices_have_ids_of_their_own(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say("first")
    engine.say("second one")
    reply = (await client.post(URL, json=ask(n=2, seed=7))).json()
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == ["first", "second one"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] == len("first") + len("second one") + 2
    turns = [system.ledgers.serve.load_turn(f"{reply['id']}.{i}") for i in range(2)]
    assert [turn and turn.reply["content"] for turn in turns] == texts
    assert system.ledgers.serve.load_turn(reply["id"]) is None
    assert [request.sampling.seed for request in engine.requests] == [7, 8]
    assert [turn and turn.sampling.seed for turn in turns] == [7, 8], "each with what it was sampled with"


async def test_several_choices_stream_interleaved(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("first", delay_s=0.001)
    engine.say("second one", delay_s=0.001)
    events = chunks((await client.post(URL, json=ask(n=2, stream=True))).text)
    assert [joined(events, choice=i) for i in range(2)] == ["first", "second one"]
    ends = [c["index"] for event in events[:-1] for c in event["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1]
    order = [c["index"] for event in events[:-1] for c in event["choices"]]
    assert order != sorted(order), "neither choice waits for the other"


async def test_sampling_parameters_reach_the_engine(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine
) -> None:
    await client.post(URL, json=ask(temperature=0.5, top_p=0.9, top_k=40, seed=-3, max_tokens=5))
    await client.post(URL, json=ask(top_k=-1))
    await client.post(URL, json=ask(temperature=1))
    await client.post(URL, json=ask(top_p=0.5))
    given, default, *chosen = (request.sampling for request in engine.requests)
    assert (given.temperature, given.top_p, given.top_k) == (0.5, 0.9, 40)
    assert (given.seed, given.max_tokens) == (-3, 5)
    assert (default.temperature, default.top_p, default.top_k, default.seed) == (0.7, 0.9, 0, None)
    assert default.max_tokens == 1024
    # Who says one thing has chosen: the others are neutral then.
    assert [(each.temperature, each.top_p, each.top_k) for each in chosen] == [(1.0, 1.0, 0), (1.0, 0.5, 0)]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_the_engine_s_own(
    client: httpx.AsyncClient,
    ask: Ask,
    engine: ScriptedEngine,
    chunks: Chunks,
    system: ServingSystem,
    stream: bool,
) -> None:
    engine.say("né")
    answer = await client.post(URL, json=ask(logprobs=True, top_logprobs=3, stream=stream))
    if stream:
        events = chunks(answer.text)
        reply_id = events[0]["id"]
        parts = [c["logprobs"] for event in events[:-1] for c in event["choices"] if c["logprobs"]]
        entries = [entry for part in parts for entry in part["content"]]
    else:
        reply_id, entries = answer.json()["id"], answer.json()["choices"][0]["logprobs"]["content"]
    turn = system.ledgers.serve.load_turn(reply_id)
    assert turn is not None
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "né".encode()
    assert [entry["logprob"] for entry in entries] == pytest.approx([t.logprob for t in turn.tokens[:-1]])
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert set(entry["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    assert all(len(token.top_ids) == 8 for token in turn.tokens), "the ledger keeps the usual eight"


async def test_logprobs_without_top_logprobs(client: httpx.AsyncClient, ask: Ask) -> None:
    reply = (await client.post(URL, json=ask(logprobs=True))).json()
    assert [entry["top_logprobs"] for entry in reply["choices"][0]["logprobs"]["content"]] == [[]] * 6


async def test_a_tool_call(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, system: ServingSystem
) -> None:
    engine.say(CALL)
    reply = (await client.post(URL, json=ask(tools=[WEATHER]))).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}
    turn = system.ledgers.serve.load_turn(reply["id"])
    assert turn is not None
    assert turn.reply["tool_calls"][0]["id"] == call["id"]
    assert turn.tools == [WEATHER]


async def test_streamed_tool_call_deltas_add_up(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say(CALL + '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    events = chunks((await client.post(URL, json=ask(tools=[WEATHER], stream=True))).text)
    deltas = [
        call
        for event in events[:-1]
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    for index, city in enumerate(["Köln", "Rome"]):
        mine = [call for call in deltas if call["index"] == index]
        assert mine[0]["type"] == "function"
        assert mine[0]["function"]["name"] == "weather"
        assert mine[0]["id"]
        assert not any("id" in call or "name" in call["function"] for call in mine[1:])
        assert len(mine) > 5, "arguments stream as they are sampled"
        assert json.loads("".join(call["function"]["arguments"] for call in mine)) == {"city": city}
    assert len({call["id"] for call in deltas if "id" in call}) == 2
    assert joined(events) == "Let me look."
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("body", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
async def test_without_tools_a_call_is_plain_text(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, body: dict[str, Any]
) -> None:
    engine.say(CALL)
    (choice,) = (await client.post(URL, json=ask(**body))).json()["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("body", "constrained"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"tools": [WEATHER]}, False),
        ({"tools": [WEATHER], "tool_choice": "auto"}, False),
        ({"tools": [WEATHER], "tool_choice": "required"}, True),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": FORMAT}, True),
    ],
)
async def test_a_shape_reaches_the_engine_as_a_grammar(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, body: dict[str, Any], constrained: bool
) -> None:
    assert (await client.post(URL, json=ask(**body))).status_code == 200
    assert (engine.requests[-1].grammar is not None) == constrained


async def test_a_shape_the_engine_refuses_is_the_client_s_error(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine
) -> None:
    engine.refuse_grammars = True
    answer = await client.post(URL, json=ask(response_format=FORMAT))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_apart_from_content(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks, stream: bool
) -> None:
    engine.say("<think>\nhm, let me see\n</think>\n\nForty-two.")
    answer = await client.post(URL, json=ask(stream=stream))
    if stream:
        events = chunks(answer.text)
        assert joined(events, "reasoning_content") == "hm, let me see"
        assert joined(events) == "Forty-two."
    else:
        message = answer.json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm, let me see", "Forty-two.")


async def test_roles_and_part_lists_reach_the_prompt(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, system: ServingSystem
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "D-text"},
        {"role": "user", "content": [{"type": "text", "text": "U-one "}, {"type": "text", "text": "U-two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "T-text"}]},
        {"role": "user", "content": "again", "name": "ada"},
    ]
    answer = await client.post(URL, json=ask(messages=messages, tools=[WEATHER]))
    assert answer.status_code == 200
    renderer: Any = system.gateway.renderer
    prompt = renderer.tokenizer.decode(engine.requests[0].prompt_ids)
    positions = [prompt.index(text) for text in ("D-text", "U-one U-two", "weather", "T-text", "again")]
    assert positions == sorted(positions) or prompt.index("weather") < prompt.index("U-one")
    turn = system.ledgers.serve.load_turn(answer.json()["id"])
    assert turn is not None
    assert turn.messages == messages, "kept as sent"


async def test_an_error_in_the_middle_of_a_stream_is_said(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks, system: ServingSystem
) -> None:
    engine.say("unlucky", fail_after=3)
    answer = await client.post(URL, json=ask(stream=True))
    events = chunks(answer.text)
    assert answer.status_code == 200
    assert events[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in events
    await system.gateway.drain()
    turn = system.ledgers.serve.load_turn(events[0]["id"])
    assert turn is not None
    assert (turn.finish_reason, len(turn.tokens)) == ("cancelled", 3)


async def test_one_failing_choice_ends_them_all(
    client: httpx.AsyncClient, ask: Ask, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("fine", pause_after=2)
    engine.say("unlucky", fail_after=3)
    events = chunks((await client.post(URL, json=ask(stream=True, n=2))).text)
    assert events[-1]["error"]["type"] == "server_error"
    assert engine.status().num_running == 0


async def test_a_version_can_be_named_and_a_running_reply_keeps_its_own(
    system: ServingSystem, ask: Ask, engine: ScriptedEngine, client: httpx.AsyncClient, tmp_path: Any
) -> None:
    await engine.load(Weights.in_folder(3, tmp_path))
    engine.say("slow", pause_after=1)
    running = asyncio.create_task(client.post(URL, json=ask()))
    await until(lambda: engine.status().num_running == 1, "the first reply is running")
    await engine.serve_version(3)
    later = await client.post(URL, json=ask())
    base = await client.post(URL, json=ask(model="scripted@0"))
    engine.resume.set()
    answers = [await running, later, base]
    assert [answer.headers["x-policy-version"] for answer in answers] == ["0", "3", "0"]
    turns = [system.ledgers.serve.load_turn(answer.json()["id"]) for answer in answers]
    assert [turn and turn.policy_version for turn in turns] == [0, 3, 0]
    names = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
    assert names == ["scripted", "scripted@0", "scripted@3"]


@pytest.mark.parametrize("raw", ['"\\ud800"', "NaN", "-Infinity", '"\\u0000"', "1" + "0" * 400, '{"": [[]]}'])
@pytest.mark.parametrize("place", ["field", "message"])
async def test_whatever_is_answered_is_recorded(
    client: httpx.AsyncClient, ask: Ask, system: ServingSystem, raw: str, place: str
) -> None:
    extra = {"role": "user", "content": "Hi", "odd": "HERE"}
    body = ask(odd="HERE") if place == "field" else ask(messages=[extra])
    content = json.dumps(body).replace('"HERE"', raw)
    answer = await client.post(URL, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    turn = system.ledgers.serve.load_turn(answer.json()["id"])
    assert turn is not None
    assert system.recorder.health().num_lost == 0
    kept = turn.params["odd"] if place == "field" else turn.messages[0]["odd"]
    assert json.dumps(kept) == json.dumps(json.loads(raw))


class SlowToStore:
    """A capture in which it takes long until a delivery is stored."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.told: list[str] = []
        self.stored = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delivered(self, turn_id: str, delivered: bool) -> None:
        self.told.append(turn_id)
        await self.stored.wait()
        await self._inner.delivered(turn_id, delivered)


async def test_all_choices_are_known_to_have_arrived_before_the_first_is_stored(
    client: httpx.AsyncClient, ask: Ask, system: ServingSystem
) -> None:
    """Until then, the same request once more would look like a retry, and the reply would not count."""
    slow = SlowToStore(system.gateway.capture)
    system.gateway.capture = slow
    answer = (await client.post(URL, json=ask(n=3))).json()
    told = list(await until(lambda: slow.told, "the deliveries are told"))
    slow.stored.set()
    await system.gateway.drain()
    assert told == [f"{answer['id']}.{index}" for index in range(3)]
