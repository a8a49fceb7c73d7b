"""A model elsewhere answers, the one here takes over, and answers whenever the other cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openclaw_rl.capabilities import check_choices
from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.config import load_config
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve.takeover import TakeOverAnswerer
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import EVERYONE, UPSTREAM_VERSION, Weights

from .test_upstream import ASKS, listening, said


@dataclass
class Cloud:
    """An OpenAI-compatible server that says one thing, or has some trouble."""

    trouble: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "big"}]})),
                Route("/v1/chat/completions", self.answer, methods=["POST"]),
                Route("/v1/completions", self.answer, methods=["POST"]),
            ]
        )

    async def answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.trouble.isdigit():
            headers = {"retry-after": "7"} if self.trouble == "429" else {}
            return JSONResponse({"error": {"message": "no"}}, int(self.trouble), headers)
        return StreamingResponse(self._stream("prompt" in self.asked[-1]), media_type="text/event-stream")

    async def _stream(self, bare: bool) -> AsyncIterator[str]:
        def chunk(text: str, reason: str | None = None) -> str:
            said = {"text": text} if bare else {"delta": {"content": text}}
            return f"data: {json.dumps({'choices': [{'index': 0, **said, 'finish_reason': reason}]})}\n\n"

        if self.trouble == "silent":
            await asyncio.sleep(3600)
        if self.trouble == "empty":
            return
        yield chunk("From the ")
        if self.trouble == "breaks off":
            raise ConnectionResetError
        yield chunk("cloud.", "stop")
        yield "data: [DONE]\n\n"


@asynccontextmanager
async def both(
    make: Callable[..., ServingSystem], connect: Any, cloud: Cloud, **settings: Any
) -> AsyncIterator[tuple[ServingSystem, httpx.AsyncClient]]:
    async with listening(cloud.app()) as url:
        system = make(upstream=url, take_over=True, upstream_terms="allow-learning", **settings)
        async with connect(system) as client:
            yield system, client


async def learned(system: ServingSystem, share: float) -> TakeOverAnswerer:
    """Version 1 serves, and answers so much."""
    assert isinstance(system.engine, ScriptedEngine)
    await system.engine.load(Weights.in_folder(1, system.store.path(1)))
    await system.engine.serve_version(1)
    answerer = system.gateway.answerer
    assert isinstance(answerer, TakeOverAnswerer)
    answerer.shares = {EVERYONE: share}
    return answerer


@pytest.mark.parametrize("path", ASKS)
async def test_at_first_the_other_answers(path: str, make_system: Any, connect: Any) -> None:
    cloud = Cloud()
    async with both(make_system, connect, cloud) as (system, client):
        answer = await client.post(path, json={"model": "default", **ASKS[path]})
        assert (answer.status_code, said(answer.json())) == (200, "From the cloud.")
        assert cloud.asked[0]["model"] == "big"
        turn = system.ledgers.serve.load_turn(answer.json()["id"])
        assert turn is not None
        assert (turn.policy_version, turn.tokens, turn.fingerprint) == (UPSTREAM_VERSION, [], "")


CHAT, *OTHERS = ASKS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("trouble", "path"),
    [
        *((t, CHAT) for t in ("503", "429", "401", "402", "404", "empty", "gone", "silent")),
        *(("500", p) for p in OTHERS),
    ],
)
async def test_unplugged_the_model_here_answers(
    trouble: str, path: str, stream: bool, make_system: Any, connect: Any
) -> None:
    cloud = Cloud(trouble)
    async with both(make_system, connect, cloud, upstream_first_token_s=0.05) as (system, client):
        if trouble == "gone":
            system.gateway.answerer.upstream.url = "http://127.0.0.1:9/v1"  # type: ignore[attr-defined]
        for _ in range(2):
            answer = await client.post(path, json={"model": "default", "stream": stream, **ASKS[path]})
            assert answer.status_code == 200, answer.text
            assert '"error":{' not in answer.text.replace(" ", "")
            assert answer.headers["x-policy-version"] == "0"
            if not stream:
                assert said(answer.json()) == "Hello!"
                turn = system.ledgers.serve.load_turn(answer.json()["id"])
                assert turn is not None
                assert turn.tokens
        assert len(cloud.asked) <= 1, "after trouble it is left alone for a while"
        assert (await client.get("/v1/status")).json()["take_over"]["problem"]


@pytest.mark.parametrize("path", ASKS)
async def test_broken_off_in_the_middle_it_goes_on_here(path: str, make_system: Any, connect: Any) -> None:
    async with both(make_system, connect, Cloud("breaks off")) as (system, client):
        engine = system.engine
        assert isinstance(engine, ScriptedEngine)
        engine.say("local model.")
        answer = await client.post(path, json={"model": "default", **ASKS[path]})
        assert (answer.status_code, said(answer.json())) == (200, "From the local model.")
        turn = system.ledgers.serve.load_turn(answer.json()["id"])
        assert turn is not None
        assert (turn.policy_version, turn.tokens) == (UPSTREAM_VERSION, []), "nobody's tokens"
        prompt = engine.requests[-1].prompt_ids
        assert bytes(system.gateway.renderer.token_bytes(i)[0] for i in prompt[-9:]) == b"From the "


async def test_what_the_client_did_wrong_is_said(make_system: Any, connect: Any, ask: Any) -> None:
    async with both(make_system, connect, Cloud("400")) as (_, client):
        answer = await client.post("/v1/chat/completions", json=ask())
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no")


async def test_a_model_that_the_client_named_itself_and_that_is_not_there_is_said(
    make_system: Any, connect: Any
) -> None:
    async with both(make_system, connect, Cloud("404")) as (_, client):
        answer = await client.post(CHAT, json={"model": "enormous", **ASKS[CHAT]})
        assert answer.status_code == 404


async def test_a_share_of_conversations_is_answered_here(make_system: Any, connect: Any, ask: Any) -> None:
    cloud = Cloud()
    async with both(make_system, connect, cloud) as (system, client):
        await learned(system, 0.5)
        here = 0
        for number in range(24):
            first = {"role": "user", "content": f"question {number}"}
            versions = set()
            for said_so_far in ([first], [first, {"role": "assistant", "content": "x"}, first]):
                body = {"model": "default", "messages": said_so_far}
                answer = await client.post("/v1/chat/completions", json=body)
                versions.add(answer.headers["x-policy-version"])
            assert len(versions) == 1, "a whole conversation"
            here += versions == {"1"}
        assert 4 < here < 20


async def test_the_base_takes_nothing_over(make_system: Any, connect: Any, ask: Any) -> None:
    async with both(make_system, connect, Cloud()) as (system, client):
        system.gateway.answerer.shares = {EVERYONE: 1.0}  # type: ignore[attr-defined]
        answer = await client.post("/v1/chat/completions", json=ask())
        assert answer.headers["x-policy-version"] == str(UPSTREAM_VERSION)


async def test_what_is_off_the_record_never_leaves(make_system: Any, connect: Any, ask: Any) -> None:
    cloud = Cloud()
    async with both(make_system, connect, cloud) as (_, client):
        private = {"x-off-the-record": "1"}
        answer = await client.post("/v1/chat/completions", json=ask(), headers=private)
        assert said(answer.json()) == "Hello!"
        reply = answer.json()["choices"][0]["message"]
        more = [{"role": "user", "content": "Hi"}, reply, {"role": "user", "content": "go on"}]
        answer = await client.post("/v1/chat/completions", json=ask(messages=more))
        assert answer.headers["x-off-the-record"] == "1"
        assert cloud.asked == [], "nor what goes on from there"


async def test_versions_by_number_and_long_requests(make_system: Any, connect: Any, ask: Any) -> None:
    cloud = Cloud()
    async with both(make_system, connect, cloud) as (system, client):
        answer = await client.post("/v1/chat/completions", json=ask(model="default@0"))
        assert said(answer.json()) == "Hello!"
        await learned(system, 1.0)
        assert said((await client.post("/v1/chat/completions", json=ask())).json()) == "Hello!"
        long = ask("word " * 4000)
        assert said((await client.post("/v1/chat/completions", json=long)).json()) == "From the cloud."


async def test_the_ledger_names_the_share_and_everybody_can_see_it(make_system: Any, connect: Any) -> None:
    async with both(make_system, connect, Cloud()) as (system, client):
        assert (await client.get("/v1/take-over")).json()["share"] == 0
        TakeOvers(system.ledgers.learn).go(EVERYONE, 0.25, "a test")
        await system.follow()
        assert system.gateway.answerer.shares == {EVERYONE: 0.25}  # type: ignore[attr-defined]
        shown = (await client.get("/v1/take-over")).json()
        assert (shown["share"], shown["why"], len(shown["history"])) == (0.25, "a test", 1)
        assert (await client.get("/v1/status")).json()["take_over"]["share"] == 0.25


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"take_over": True}, "--take-over needs --upstream"),
        ({"take_over": True, "upstream": "http://x/v1"}, "--upstream-terms allow-learning"),
        ({"take_over_shares": "0.5,0.1"}, "rising shares"),
        ({"take_over_shares": "a lot"}, "rising shares"),
        ({"algo": "hybrid"}, "use hinted"),
    ],
)
def test_what_has_to_be_known_first(settings: dict[str, Any], problem: str) -> None:
    asked = {"take_over": True, "upstream": "http://x/v1", "upstream_terms": "allow-learning"}
    given = settings if "take_over" in settings else {**asked, **settings}
    with pytest.raises(ValueError, match=problem):
        check_choices(load_config(given, environment={}))
