"""Another server answers: everything but the weights works as if it were ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.transfer import export_sessions
from openclaw_rl.config import load_config
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.loop import build_serving
from openclaw_rl.processes.learning_parts import UPSTREAM
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import WordJudge, skip_time, until
from openclaw_rl.train.untrained import settle_untrained

ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 50},
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "sea"}}\n</tool_call>'


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", lifespan="off"))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started, "the other server listens")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    server.should_exit = True
    await running


@asynccontextmanager
async def passing(home: Path, url: str, **settings: Any) -> AsyncIterator[ServingSystem]:
    config = load_config({"home": home, "upstream": url, **settings}, environment={})
    system = build_serving(config)
    yield system
    await system.close()


@pytest.fixture
async def front(
    system: ServingSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Any
) -> AsyncIterator[tuple[ServingSystem, httpx.AsyncClient]]:
    """Ours, in front of a scripted server of the same kind."""
    monkeypatch.setenv("OPENCLAW_RL_UPSTREAM_API_KEY", str(system.keys.key_of("default")))
    async with (
        listening(system.app()) as url,
        passing(tmp_path / "front", url) as front,
        connect(front) as client,
    ):
        yield front, client


def said(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0].get("text") or reply["choices"][0]["message"]["content"])
    if "output" in reply:
        return str(reply["output"][0]["content"][0]["text"])
    return str(reply["content"][0]["text"])


@pytest.mark.parametrize("path", ASKS)
async def test_every_dialect_is_passed_on(path: str, front: Any, system: ServingSystem, engine: Any) -> None:
    ours, client = front
    engine.say("It is so.")
    answer = await client.post(path, json={"model": "scripted", **ASKS[path]})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert (said(reply), reply["model"]) == ("It is so.", "scripted")
    usage = reply["usage"]
    assert (usage.get("completion_tokens") or usage.get("output_tokens")) == 10
    turn = ours.ledgers.serve.load_turn(reply["id"])
    assert (turn.reply["content"], turn.tokens, turn.prompt_ids) == ("It is so.", [], [])
    assert len(system.engine.requests) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ASKS)
async def test_streaming_is_real(path: str, front: Any, engine: Any) -> None:
    _, client = front
    engine.say("a long story", pause_after=6)
    body = {"model": "scripted", "stream": True, **ASKS[path]}
    async with listening(front[0].app()) as url:
        headers = dict(client.headers)
        async with (
            httpx.AsyncClient(headers=headers, timeout=60) as real,
            real.stream("POST", url.removesuffix("/v1") + path, json=body) as answer,
        ):
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if '"g"' in text and not engine.resume.is_set():
                    assert '"s"' not in text
                    engine.resume.set()
    assert '"y"' in text


async def test_tools_choices_and_logprobs_pass(front: Any, engine: Any, ask: Any) -> None:
    _, client = front
    engine.say("Well. " + CALL)
    first = (await client.post("/v1/chat/completions", json=ask(tools=[TOOL], temperature=0))).json()
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"word": "sea"}
    history = [*ask()["messages"], message, {"role": "tool", "tool_call_id": call["id"], "content": "water"}]
    second = await client.post("/v1/chat/completions", json=ask(messages=history, tools=[TOOL]))
    turns = (await client.get(f"/v1/sessions/{second.headers['x-session-id']}")).json()["turns"]
    assert [turn["id"] for turn in turns] == [first["id"], second.json()["id"]]
    assert turns[0]["next_state"][0]["content"] == "water"
    several = (await client.post("/v1/chat/completions", json=ask(n=2, logprobs=True, top_logprobs=2))).json()
    assert [choice["message"]["content"] for choice in several["choices"]] == ["Hello!", "Hello!"]
    assert "".join(e["token"] for e in several["choices"][1]["logprobs"]["content"]) == "Hello!"


async def test_conversations_cross_dialects_and_are_judged_but_not_trained(front: Any) -> None:
    ours, client = front
    first = await client.post("/v1/responses", json={"model": "scripted", "input": "Hi"})
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": "bad: be brief"}]  # fmt: skip
    second = await client.post(
        "/v1/messages", json={"model": "scripted", "max_tokens": 9, "messages": messages}
    )
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    judge_queue = LedgerJudgeQueue(ours.ledgers.serve, ours.ledgers.learn, idle_s=1e12)
    work = [
        asyncio.create_task(JudgeWorker(judge_queue, WordJudge(), poll_s=0.01).run()),
        asyncio.create_task(settle_untrained(ours.ledgers.policies, UPSTREAM, poll_s=0.01)),
    ]
    async with asyncio.timeout(60):
        while (turn := (await client.get(f"/v1/turns/{first.json()['id']}")).json())["state"] != "excluded":
            await asyncio.sleep(0.01)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    assert (turn["state"], turn["reason"]) == ("excluded", UPSTREAM)
    assert turn["verdict"]["score"] == -1
    ours.memory.refresh()
    assert "bad: be brief" in str(ours.memory.note("default"))
    with (ours.config.home / "out.jsonl").open("w") as file:
        assert export_sessions(ours.ledgers.serve, file) == 1


async def test_models_are_the_other_server_s(front: Any) -> None:
    _, client = front
    assert [m["id"] for m in (await client.get("/v1/models")).json()["data"]] == ["scripted", "scripted@0"]
    assert (await client.get("/v1/models/scripted@0")).status_code == 200
    assert (await client.get("/v1/models/none")).status_code == 404
    counted = await client.post("/v1/messages/count_tokens", json={"model": "x", **ASKS["/v1/messages"]})
    assert counted.status_code == 501


async def test_what_it_refuses_is_refused_as_it_says(front: Any, ask: Any) -> None:
    ours, client = front
    answer = await client.post("/v1/chat/completions", json=ask(model="gpt-9"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    long = await client.post("/v1/messages", json={"model": "scripted", "max_tokens": 9, "messages": [
        {"role": "user", "content": "x" * 5000}]})  # fmt: skip
    assert long.status_code == 400
    assert "prompt is too long" in long.json()["error"]["message"]
    assert ours.gateway.num_inflight == 0


async def test_leaving_stops_the_other_server_too(front: Any, engine: Any, ask: Any, raw_call: Any) -> None:
    ours, _ = front
    engine.say("a long story", pause_after=6)
    call = raw_call(ours, ask(stream=True))
    await until(lambda: b'"content":"g"' in call.body, "six tokens are out")
    call.leave()
    await call.task
    await until(lambda: engine.num_cancelled == 1, "the other server stops")
    await ours.gateway.drain()
    assert ours.ledgers.serve.counts()["finish_cancelled"] == 1
    assert ours.gateway.num_inflight == 0


# --- servers that misbehave ------------------------------------------------------------------


def answering(make: Callable[[Request], Any]) -> Starlette:
    async def chat_completions(request: Request) -> Response:
        await request.body()
        made = make(request)
        return await made if asyncio.iscoroutine(made) else made

    return Starlette(routes=[Route("/v1/chat/completions", chat_completions, methods=["POST"])])


def stream_of(*lines: str) -> Callable[[Request], Response]:
    async def pieces() -> AsyncIterator[str]:
        for line in lines:
            yield f"data: {line}\n\n"

    return lambda request: StreamingResponse(pieces(), media_type="text/event-stream")


def refusing(status: int, body: Any = None, **headers: str) -> Callable[[Request], Response]:
    return lambda request: JSONResponse(body or {"error": {"message": "no luck"}}, status, headers)


#: Requests that are not answered.
SILENT: set[Request] = set()


async def never(request: Request) -> Response:
    SILENT.add(request)
    while not await request.is_disconnected():
        await asyncio.sleep(0.02)
    SILENT.remove(request)
    return Response()


HALF = '{"choices": [{"index": 0, "delta": {"content": "half"}}]}'
TROUBLE: dict[str, tuple[Callable[[Request], Any], int, str]] = {
    "500": (refusing(500), 502, "answers 500: no luck"),
    "401": (refusing(401), 502, "OPENCLAW_RL_UPSTREAM_API_KEY"),
    "429": (refusing(429, **{"retry-after": "7"}), 429, "no luck"),
    "422 in its own words": (refusing(422, {"detail": "odd"}), 422, "odd"),
    "silent": (never, 504, "no answer in time"),
    "no JSON": (stream_of("nonsense"), 502, "broke off"),
    "no object": (stream_of("[1]"), 502, "broke off"),
    "cut": (stream_of(HALF), 502, "without finishing"),
    "fails midway": (stream_of(HALF, '{"error": {"message": "out of memory"}}'), 502, "out of memory"),
    "odd choices": (stream_of('{"choices": [{"index": "x"}]}'), 502, "broke off"),
}


@pytest.mark.parametrize("name", TROUBLE)
@pytest.mark.parametrize("stream", [False, True])
async def test_trouble_is_said(name: str, stream: bool, tmp_path: Path, connect: Any, ask: Any) -> None:
    make, status, words = TROUBLE[name]
    async with (
        listening(answering(make)) as url,
        passing(tmp_path / "front", url, upstream_timeout_s=600) as front,
        connect(front) as client,
    ):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ask(stream=stream)))
        if name == "silent":
            await until(lambda: SILENT, "it was asked, and says nothing")
            skip_time(601)
        answer = await asking
        begun = stream and name in ("no JSON", "no object", "cut", "fails midway", "odd choices")
        assert answer.status_code == (200 if begun else status), answer.text
        assert words in answer.text
        assert front.gateway.num_inflight == 0
        if name == "429":
            assert answer.headers["retry-after"] == "7"


async def test_a_server_that_is_not_there(tmp_path: Path, connect: Any, ask: Any) -> None:
    async with passing(tmp_path / "front", "http://127.0.0.1:9/v1") as front, connect(front) as client:
        answer = await client.post("/v1/chat/completions", json=ask())
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]
        assert (await client.get("/readyz")).status_code == 200


async def test_a_server_that_does_not_stream(tmp_path: Path, connect: Any, ask: Any, chunks: Any) -> None:
    reply = {"choices": [{"index": 0, "message": {"content": "All at once."}, "finish_reason": "length"}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 4}}  # fmt: skip
    async with (
        listening(answering(lambda request: JSONResponse(reply))) as url,
        passing(tmp_path / "front", url) as front,
        connect(front) as client,
    ):
        *pieces, _ = chunks((await client.post("/v1/chat/completions", json=ask(stream=True))).text)
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == "All at once."
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"


async def test_images_and_unknown_fields_pass_and_ours_do_not(tmp_path: Path, connect: Any, ask: Any) -> None:
    seen: list[Any] = []

    async def look(request: Request) -> Response:
        seen.append((await request.json(), request.headers.get("authorization")))
        return stream_of('{"choices": [{"delta": {"content": "a cat"}, "finish_reason": "stop"}]}')(request)

    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    async with (
        listening(answering(look)) as url,
        passing(tmp_path / "front", url, notes="on", elsewhere="learned") as front,
        connect(front) as client,
    ):
        body = ask([{"type": "text", "text": "What is this?"}, image], session_id="s", wibble=1)
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        front.memory._hints["default"] = ("be brief",)
        anthropic = {"model": "m", "max_tokens": 9, "system": "Be kind.", "metadata": {"user_id": "u"},
                     "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": [
                         {"type": "image", "source": {"media_type": "image/png", "data": "AA"}},
                     ]}]}  # fmt: skip
        reply = await client.post("/v1/messages", json=anthropic)
        assert reply.status_code == 200, reply.text
        turn = front.ledgers.serve.load_turn(reply.json()["id"])
    (first, key), (second, _) = seen
    assert key is None, "our own key is nobody else's business"
    assert first["messages"][0]["content"][1] == image
    assert (first["wibble"], "session_id" in first) == (1, False)
    assert set(second) == {"model", "max_tokens", "messages", "stream", "stream_options"}
    assert second["messages"][1]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    ]
    assert second["messages"][0]["content"].startswith("Be kind.\n\n")
    assert second["messages"][0]["content"].endswith("- be brief")
    assert turn is not None
    assert turn.messages[0]["content"] == "Be kind.", "kept apart, beside the request"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x"])
def test_a_url_that_is_none(url: str, tmp_path: Path) -> None:
    config = load_config({"home": tmp_path, "upstream": url or " "}, environment={})
    with pytest.raises(ValueError, match="must be a URL"):
        build_serving(config)
