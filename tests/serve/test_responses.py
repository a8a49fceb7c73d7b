"""The Responses API over the scripted engine: items, events, tools, formats, history by id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.testing.fakes import byte_tokenizer

URL = "/v1/responses"
Chunks = Callable[[str], list[Any]]
TOOL = {"type": "function", "name": "look_up", "description": "Looks up", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "sea"}}\n</tool_call>'


def ask(said: Any = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": said, **more}


async def test_a_reply_as_one_message(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json=ask(instructions="Be brief", metadata={"a": "b"}))
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["model"]) == ("response", "completed", "scripted")
    assert (reply["instructions"], reply["metadata"]) == ("Be brief", {"a": "b"})
    (item,) = reply["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello!"}]
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"] > 0
    assert answer.headers["x-session-id"]
    assert (await client.get(f"/v1/turns/{reply['id']}")).json()["state"] == "waiting"


async def test_events_come_in_order_and_numbered(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("<think>\nhm\n</think>\n\nSee: " + CALL)
    answer = await client.post(URL, json=ask(stream=True, tools=[TOOL]))
    events = chunks(answer.text)
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    assert kinds == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert added[2]["arguments"] == ""
    final = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert final["output"] == done
    assert [event["output_index"] for event in events if "output_index" in event][-1] == 2
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert final["output"][1]["content"][0]["text"] == text == "See:"


async def test_whole_and_streamed_are_the_same(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    for _ in range(2):
        engine.say("<think>\nhm\n</think>\n\nSee: " + CALL)
    whole = (await client.post(URL, json=ask(tools=[TOOL]))).json()
    streamed = chunks((await client.post(URL, json=ask(tools=[TOOL], stream=True))).text)[-1]["response"]

    def bare(response: dict[str, Any]) -> Any:
        ids = ("id", "call_id")
        return [{k: v for k, v in item.items() if k not in ids} for item in response["output"]]

    assert bare(whole) == bare(streamed)
    assert whole["usage"] == streamed["usage"]
    fetched = (await client.get(f"{URL}/{whole['id']}")).json()
    assert (fetched["output"], fetched["usage"]) == (whole["output"], whole["usage"])


async def test_a_tool_is_called_and_answered(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say(CALL)
    first = await client.post(URL, json=ask("What is the sea?", tools=[TOOL]))
    (call,) = first.json()["output"]
    assert (call["type"], call["name"]) == ("function_call", "look_up")
    assert json.loads(call["arguments"]) == {"word": "sea"}
    items = [
        {"role": "user", "content": "What is the sea?"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "water"},
    ]
    second = await client.post(URL, json=ask(items, tools=[TOOL]))
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    turn = (await client.get(f"/v1/turns/{first.json()['id']}")).json()
    assert [message["content"] for message in turn["next_state"]] == ["water"]


async def test_history_comes_from_the_ledger(
    client: httpx.AsyncClient, engine: ScriptedEngine, system: ServingSystem
) -> None:
    first = await client.post(URL, json=ask("My name is Ada.", instructions="Be brief"))
    second = await client.post(URL, json=ask("And yours?", previous_response_id=first.json()["id"]))
    assert second.json()["previous_response_id"] == first.json()["id"]
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    third = await client.post(URL, json=ask("Bye", previous_response_id=second.json()["id"]))
    turn = system.ledgers.serve.load_turn(third.json()["id"])
    assert turn is not None
    said = [(message["role"], message["content"]) for message in turn.messages]
    assert said == [
        ("user", "My name is Ada."), ("assistant", "Hello!"), ("user", "And yours?"),
        ("assistant", "Hello!"), ("user", "Bye"),
    ]  # fmt: skip
    assert turn.continues == second.json()["id"]
    assert turn.prompt_ids == system.gateway.renderer.render(turn.messages)  # type: ignore[union-attr]


async def test_an_empty_reply_can_be_continued(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say("")
    first = await client.post(URL, json=ask())
    assert first.json()["output"][0]["content"][0]["text"] == ""
    second = await client.post(URL, json=ask("Well?", previous_response_id=first.json()["id"]))
    assert second.headers["x-session-id"] == first.headers["x-session-id"]


async def test_nobody_continues_or_reads_another_user_s_response(
    client: httpx.AsyncClient, system: ServingSystem, connect: Any
) -> None:
    theirs = (await client.post(URL, json=ask())).json()["id"]
    async with connect(system, key=system.keys.add("ada")) as ada:
        refused = await ada.post(URL, json=ask(previous_response_id=theirs))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert (await ada.get(f"{URL}/{theirs}")).status_code == 404


@pytest.mark.parametrize(
    ("expected", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, {"type": "array"}),
    ],
)
async def test_formats(client: httpx.AsyncClient, engine: ScriptedEngine, expected: Any, schema: Any) -> None:
    answer = await client.post(URL, json=ask(text={"format": expected}))
    assert answer.json()["text"]["format"] == expected
    assert bool(engine.requests[-1].grammar) == bool(schema)


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("auto", False), ("none", False), ("required", True),
        ({"type": "function", "name": "look_up"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "look_up"}]}, True),
    ],
)  # fmt: skip
async def test_tool_choice(
    client: httpx.AsyncClient, engine: ScriptedEngine, choice: Any, called: bool
) -> None:
    other = {"type": "web_search"}
    answer = await client.post(URL, json=ask(tools=[TOOL, other], tool_choice=choice))
    assert answer.status_code == 200, answer.text
    assert bool(engine.requests[-1].grammar) == called


async def test_functions_in_a_namespace(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    """How Codex sends its sub-agents and MCP servers; the call names both, and so does the history."""
    engine.say(CALL.replace("look_up", "sea__look_up"))
    body = ask(tools=[TOOL, {"type": "namespace", "name": "sea", "tools": [TOOL, {"type": "custom"}]}])
    answer = await client.post(URL, json={**body, "stream": True})
    done = [e["item"] for e in chunks(answer.text) if e["type"] == "response.output_item.done"]
    assert [(item["namespace"], item["name"]) for item in done] == [("sea", "look_up")]
    result = {"type": "function_call_output", "call_id": done[0]["call_id"], "output": "blue"}
    engine.say("Blue.")
    said = [{"role": "user", "content": "Hi"}, done[0], result]
    second = await client.post(URL, json={**body, "input": said})
    assert [tool["name"] for tool in second.json()["tools"]] == ["look_up", "sea__look_up"]
    assert second.headers["x-session-id"] == answer.headers["x-session-id"]


async def test_a_reply_cut_short_is_incomplete(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("a long story")
    events = chunks((await client.post(URL, json=ask(max_output_tokens=3, stream=True))).text)
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["max_output_tokens"], response["output"][0]["status"]) == (3, "incomplete")


async def test_a_failure_ends_the_stream_in_words(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Chunks
) -> None:
    engine.say("unlucky", fail_after=2)
    last = chunks((await client.post(URL, json=ask(stream=True))).text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "gpt-9"}, 404, "model", "model_not_found"),
        ({"input": "x" * 5000}, 400, "input", "context_length_exceeded"),
        ({"input": None}, 400, "input", None),
        ({"input": [{"type": "web_search_call"}]}, 400, "input[0]", "unsupported_content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, 400,
         "input", "unsupported_content"),
        ({"temperature": 9}, 400, "temperature", "invalid_value"),
        ({"tool_choice": "required"}, 400, "tool_choice", None),
        ({"tool_choice": {"type": "web_search"}}, 400, "tool_choice", None),
        ({"text": {"format": {"type": "yaml"}}}, 400, "text.format", None),
        ({"previous_response_id": "resp_none"}, 400, "previous_response_id", "previous_response_not_found"),
        ({"background": True, "stream": True}, 400, "stream", None),
        ({"background": True, "store": False}, 400, "store", None),
        ({"conversation": "conv_1"}, 404, "conversation", "not_found"),
        ({"conversation": {"id": "conv_" + "0" * 32}}, 404, "conversation", "not_found"),
        ({"prompt": {"id": "pmpt_1"}}, 400, "prompt", None),
    ],
)  # fmt: skip
async def test_errors(
    client: httpx.AsyncClient, change: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    answer = await client.post(URL, json={**ask(), **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code), answer.text


async def test_a_wrong_key(system: ServingSystem, connect: Any) -> None:
    async with connect(system, key="wrong") as stranger:
        answer = await stranger.post(URL, json=ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


# --- what clients do with a reply that is stored ------------------------------------------------


async def test_a_reply_is_referred_to_by_its_id(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """Vercel's default OpenAI model sends a reference for every assistant text."""
    engine.say("Red.")
    colour = {"role": "user", "content": [{"type": "input_text", "text": "Name a colour."}]}
    first = await client.post(URL, json=ask([colour]))
    reference = {"type": "item_reference", "id": first.json()["output"][0]["id"]}
    another = {"role": "user", "content": [{"type": "input_text", "text": "Another."}]}
    second = await client.post(URL, json=ask([colour, reference, another]))
    assert second.status_code == 200, second.text
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    turn = (await client.get(f"/v1/turns/{second.json()['id']}")).json()
    assert turn["continues"] == first.json()["id"]


async def test_a_call_is_referred_to_by_its_id(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say(CALL)
    first = (await client.post(URL, json=ask("Look it up", tools=[TOOL]))).json()
    (item,) = first["output"]
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "blue"}
    said = [{"role": "user", "content": "Look it up"}, {"id": item["id"], "type": "item_reference"}, result]
    second = await client.post(URL, json=ask(said, tools=[TOOL]))
    assert second.status_code == 200, second.text
    prompt = engine.requests[-1].prompt_ids
    assert len(prompt) > len(engine.requests[0].prompt_ids) + len("blue")


@pytest.mark.parametrize("item_id", ["msg_0123456789abcdef012345670", "msg_x", "rs_", "😀"])
async def test_an_item_that_is_not_there(client: httpx.AsyncClient, item_id: str) -> None:
    answer = await client.post(URL, json=ask([{"type": "item_reference", "id": item_id}]))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "item_not_found"
    assert "send the item itself" in answer.json()["error"]["message"]


async def test_nobody_refers_to_what_another_was_told(
    client: httpx.AsyncClient, system: ServingSystem, connect: Any
) -> None:
    first = (await client.post(URL, json=ask())).json()
    async with connect(system, system.keys.add("ben")) as ben:
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        assert (await ben.post(URL, json=ask([reference]))).status_code == 400
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert (await ben.request(method, f"{URL}/{first['id']}{path}")).status_code == 404


async def test_a_stored_reply_as_a_stream(client: httpx.AsyncClient, chunks: Chunks) -> None:
    live = await client.post(URL, json=ask(stream=True))
    events = chunks(live.text)
    response_id = events[0]["response"]["id"]
    again = chunks((await client.get(f"{URL}/{response_id}", params={"stream": "true"})).text)
    names = [event["type"] for event in events if not event["type"].endswith(".delta")]
    assert [event["type"] for event in again if not event["type"].endswith(".delta")] == names
    assert again[-1]["response"]["output"] == events[-1]["response"]["output"]
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    rest = await client.get(f"{URL}/{response_id}", params={"stream": "true", "starting_after": 2})
    assert chunks(rest.text) == again[3:]


async def test_a_deleted_reply_is_gone_and_not_learned_from(client: httpx.AsyncClient) -> None:
    first = (await client.post(URL, json=ask())).json()
    deleted = await client.delete(f"{URL}/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert (await client.get(f"{URL}/{first['id']}")).status_code == 404
    assert (await client.delete(f"{URL}/{first['id']}")).status_code == 404
    goes_on = await client.post(URL, json=ask("More", previous_response_id=first["id"]))
    assert goes_on.json()["error"]["code"] == "previous_response_not_found"
    assert (await client.get(f"/v1/turns/{first['id']}")).json()["excluded"] is True


async def test_only_background_work_can_be_cancelled(client: httpx.AsyncClient) -> None:
    first = (await client.post(URL, json=ask())).json()
    answer = await client.post(f"{URL}/{first['id']}/cancel")
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]


async def test_the_items_that_a_reply_answered(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.say(CALL)
    first = (await client.post(URL, json=ask("Look it up", tools=[TOOL], instructions="Be brief"))).json()
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "blue"}
    second = (await client.post(URL, json=ask([result], previous_response_id=first["id"]))).json()
    path = f"{URL}/{second['id']}/input_items"
    listed = (await client.get(path, params={"order": "asc"})).json()
    assert [item["type"] for item in listed["data"]] == ["message", "function_call", "function_call_output"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "Look it up"}]
    assert listed["data"][2]["output"] == "blue"
    page = (await client.get(path, params={"limit": 2})).json()
    assert (page["has_more"], page["data"]) == (True, listed["data"][:0:-1])
    last = (await client.get(path, params={"limit": 2, "after": page["last_id"]})).json()
    assert (last["has_more"], last["data"]) == (False, listed["data"][:1])


async def test_the_tokens_of_an_input(client: httpx.AsyncClient) -> None:
    counted = await client.post(f"{URL}/input_tokens", json=ask("Hello there"))
    reply = (await client.post(URL, json=ask("Hello there"))).json()
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": reply["usage"]["input_tokens"],
    }


@pytest.mark.parametrize(
    ("wanted", "num_top"),
    [({"top_logprobs": 3}, 3), ({"include": ["message.output_text.logprobs"]}, 0)],
)
async def test_log_probs(client: httpx.AsyncClient, chunks: Chunks, wanted: Any, num_top: int) -> None:
    whole = (await client.post(URL, json=ask(**wanted))).json()
    (part,) = whole["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Hello!"
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {num_top}
    events = chunks((await client.post(URL, json=ask(stream=True, **wanted))).text)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == list("Hello!")


async def test_a_history_that_is_too_long_loses_its_beginning(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    said = [
        message
        for number in range(40)
        for message in (
            {"role": "user", "content": f"Question {number}. " + "word " * 40},
            {"role": "assistant", "content": f"Answer {number}."},
        )
    ]
    said.append({"role": "user", "content": "The last one?"})
    refused = await client.post(URL, json=ask(said))
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    options = {"truncation": "auto", "max_output_tokens": 100, "instructions": "Be kind."}
    answer = await client.post(URL, json=ask(said, **options))
    assert answer.status_code == 200, answer.text
    assert answer.json()["truncation"] == "auto"
    prompt_ids = engine.requests[-1].prompt_ids
    prompt = str(byte_tokenizer().decode(prompt_ids))
    assert 2000 < len(prompt_ids) <= 4096 - 100
    assert "Be kind." in prompt
    assert "The last one?" in prompt
    assert "Question 39." in prompt
    assert "Question 0." not in prompt
    alone = await client.post(URL, json=ask("word " * 2000, truncation="auto"))
    assert alone.json()["error"]["code"] == "context_length_exceeded"
