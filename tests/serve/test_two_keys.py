"""A second key sees, rates, lists, counts and influences nothing of the first: every route is walked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from openclaw_rl.capture.samples import policies
from openclaw_rl.capture.wishes import Wishes
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, until
from openclaw_rl.train.publish import promote

WORDS = "Rumpelstiltskin"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
OPEN = {"/", "/favicon.ico", "/healthz", "/readyz", "/web/{path:path}", "/v1/login", "/v1/logout", "/v1/me"}
#: What a stranger sends to each route with the ids of the first, and what they get.
ROUTES: dict[tuple[str, str], tuple[Any, tuple[int, ...]]] = {
    ("POST", "/v1/chat/completions"): ({**CHAT, "model": "scripted@1"}, (404,)),
    ("POST", "/v1/completions"): ({"model": "scripted@1", "prompt": "Hi"}, (404,)),
    ("POST", "/v1/messages"): ({**CHAT, "model": "scripted@1"}, (404,)),
    ("POST", "/v1/messages/count_tokens"): ({**CHAT, "model": "scripted@1"}, (404,)),
    ("POST", "/v1/responses"): (
        {"model": "scripted", "input": "Go on", "previous_response_id": "{turn}"}, (400,),
    ),
    ("POST", "/v1/responses/input_tokens"): ({"model": "scripted@1", "input": "Hi"}, (404,)),
    ("GET", "/v1/responses/{response_id}"): (None, (404,)),
    ("DELETE", "/v1/responses/{response_id}"): (None, (404,)),
    ("POST", "/v1/responses/{response_id}/cancel"): (None, (404,)),
    ("GET", "/v1/responses/{response_id}/input_items"): (None, (404,)),
    ("POST", "/v1/embeddings"): ({"model": "scripted", "input": "Hi"}, (400, 404, 501)),
    ("POST", "/v1/conversations"): ({}, (200,)),
    ("GET", "/v1/conversations/{conversation_id}"): (None, (404,)),
    ("POST", "/v1/conversations/{conversation_id}"): ({"metadata": {"a": "b"}}, (404,)),
    ("DELETE", "/v1/conversations/{conversation_id}"): (None, (404,)),
    ("GET", "/v1/conversations/{conversation_id}/items"): (None, (404,)),
    ("POST", "/v1/conversations/{conversation_id}/items"): ({"items": [{"role": "user"}]}, (404,)),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): (None, (404,)),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): (None, (404,)),
    ("GET", "/v1/models"): (None, (200,)),
    ("GET", "/v1/models/{name:path}"): (None, (404,)),
    ("GET", "/v1/sessions"): (None, (200,)),
    ("GET", "/v1/sessions/{session_id}"): (None, (404,)),
    ("POST", "/v1/sessions/{session_id}/close"): (None, (404,)),
    ("POST", "/v1/sessions/{session_id}/reward"): ({"reward": 1, "group": "g", "size": 1}, (404,)),
    ("GET", "/v1/environments"): (None, (200,)),
    ("GET", "/v1/environments/{name}/attempts"): (None, (404,)),
    ("GET", "/v1/environments/{name}/attempts/{session_id}"): (None, (404,)),
    ("POST", "/v1/sessions/{session_id}/exclude"): (None, (404,)),
    ("POST", "/v1/sessions/{session_id}/include"): (None, (404,)),
    ("GET", "/v1/turns/{turn_id}"): (None, (404,)),
    ("GET", "/v1/turns/{turn_id}/tokens"): (None, (404,)),
    ("POST", "/v1/turns/{turn_id}/exclude"): (None, (404,)),
    ("POST", "/v1/turns/{turn_id}/include"): (None, (404,)),
    ("POST", "/v1/feedback"): ({"id": "{turn}", "rating": "down", "text": "worse"}, (404,)),
    ("POST", "/v1/reactions"): ({"id": "{turn}", "emoji": "👎"}, (404,)),
    ("POST", "/v1/flush"): (None, (200,)),
    ("GET", "/v1/policies"): (None, (200,)),
    ("GET", "/v1/policies/{version}"): (None, (404,)),
    ("POST", "/v1/policies/{version}/promote"): (None, (403,)),
    ("POST", "/v1/policies/rollback"): (None, (403,)),
    ("POST", "/v1/policies/{version}/export"): ({"format": "peft"}, (403,)),
    ("POST", "/v1/compare"): ({"prompt": "Hi", "versions": [0, 1]}, (404,)),
    ("DELETE", "/v1/turns/{turn_id}"): (None, (404,)),
    ("DELETE", "/v1/sessions/{session_id}"): (None, (404,)),
    ("DELETE", "/v1/wishes/{wish_id}"): (None, (404,)),
    ("DELETE", "/v1/users/{name}"): (None, (404,)),
    ("PATCH", "/v1/wishes/{wish_id}"): ({"paused": True}, (404,)),
    ("GET", "/v1/users"): (None, (403,)),
    ("POST", "/v1/users"): ({"name": "eve"}, (403,)),
    ("PATCH", "/v1/users/{name}"): ({"group": "us"}, (403,)),
    ("DELETE", "/v1/users/{name}/key"): (None, (403,)),
    ("GET", "/v1/waves"): (None, (403,)),
    ("POST", "/v1/waves/{wave_id}"): ({"decision": "learn"}, (403,)),
    ("GET", "/v1/status"): (None, (200,)),
    ("GET", "/v1/learning"): (None, (200,)),
    ("GET", "/v1/wishes"): (None, (200,)),
    ("GET", "/v1/results"): (None, (200,)),
    ("GET", "/v1/take-over"): (None, (404,)),
    ("GET", "/metrics"): (None, (403,)),
}  # fmt: skip


class Planted:
    """A system with a conversation, a verdict, a wish and a version of the owner's, and a second key."""

    def __init__(self, system: ServingSystem, connect: Callable[..., httpx.AsyncClient]) -> None:
        self.system = system
        self.owner, self.other = connect(system), connect(system, system.keys.add("ben"))

    async def plant(self) -> None:
        engine = self.system.engine
        assert isinstance(engine, ScriptedEngine)
        engine.say(f"I am {WORDS}.")
        made = await self.owner.post("/v1/conversations", json={"metadata": {"about": WORDS}})
        self.conversation = made.json()["id"]
        asked = {"model": "scripted", "input": f"Who is {WORDS}?", "conversation": self.conversation}
        said = await self.owner.post("/v1/responses", json=asked)
        self.item = said.json()["output"][0]["id"]
        self.turn, self.session = said.json()["id"], said.headers["x-session-id"]
        await self.owner.post("/v1/feedback", json={"id": self.turn, "rating": "down", "text": WORDS})
        serve, learn = self.system.ledgers.serve, self.system.ledgers.learn
        learn.pull([], await until(lambda: serve.events_of(self.turn), "the rating is noted"))
        stored = serve.load_turn(self.turn)
        assert stored is not None
        Wishes(learn, lambda new, old: "other", lambda new, old: False).take_up(stored, WORDS, 0)
        with learn.db.begin() as connection:
            connection.execute(
                policies.insert().values(
                    version=1, parent=0, status="retired", created_at=1.0, num_samples=1, config_hash="",
                    metrics='{"loss": 1.5}', gate="{}", scope="everyone",
                )
            )  # fmt: skip
        store = self.system.store
        store.write(1, lambda folder: str((folder / "adapter_model.safetensors").write_bytes(b"")) and None,
                    {"version": 1, "scope": "everyone"})  # fmt: skip
        await engine.load(store.weights(1))
        await until(lambda: self.system.dashboard.index() == 0, "all is findable")

    def fill(self, text: str) -> str:
        names = {"turn_id": self.turn, "turn": self.turn, "response_id": self.turn, "version": "1",
                 "session_id": self.session, "name:path": "scripted@1", "wish_id": self.turn, "wave_id": "1",
                 "name": "default", "conversation_id": self.conversation, "item_id": self.item}  # fmt: skip
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    async def views(self) -> list[Any]:
        """All that the owner can see of what is theirs."""
        await self.system.gateway.drain()
        paths = [f"/v1/turns/{self.turn}", f"/v1/sessions/{self.session}", "/v1/policies", "/v1/wishes",
                 "/v1/learning", f"/v1/conversations/{self.conversation}",
                 f"/v1/conversations/{self.conversation}/items"]  # fmt: skip
        return [(await self.owner.get(path)).json() for path in paths]


@pytest.fixture
async def planted(system: ServingSystem, connect: Callable[..., httpx.AsyncClient]) -> Planted:
    made = Planted(system, connect)
    await made.plant()
    return made


def test_no_route_is_left_out(system: ServingSystem) -> None:
    known = {(method, path.replace(":path", "")) for method, path in ROUTES}
    for route in system.app().routes:
        if isinstance(route, APIRoute) and route.path not in OPEN and route.path != "/v1/events":
            for method in route.methods:
                path = route.path.replace(":path", "")
                assert (method, path) in known, f"say in ROUTES what a stranger gets of {method} {route.path}"


async def test_every_route(planted: Planted) -> None:
    before = await planted.views()
    assert WORDS in json.dumps(before)
    for (method, path), (body, expected) in ROUTES.items():
        sent = None if body is None else json.loads(planted.fill(json.dumps(body)))
        answer = await planted.other.request(method, planted.fill(path), json=sent)
        assert answer.status_code in expected, f"{method} {path}: {answer.status_code} {answer.text}"
        assert WORDS not in answer.text, f"{method} {path}"
        if answer.status_code == 200:
            assert planted.session not in answer.text, f"{method} {path}"
            assert planted.turn not in answer.text, f"{method} {path}"
    assert await planted.views() == before


async def test_what_is_counted_is_ones_own(planted: Planted) -> None:
    mine = (await planted.other.get("/v1/status")).json()
    assert (mine["funnel"]["turns"], mine["funnel"]["sessions"]) == (0, 0)
    assert mine["scope"] == "user:ben"
    assert (mine["queues"]["running"], mine["engine"]["cached_tokens"]) == (None, None)
    assert "num_recorded" not in mine["ledger"]
    assert mine["last_step"] is None
    await planted.other.post("/v1/chat/completions", json=CHAT)
    assert (await planted.other.get("/v1/status")).json()["funnel"]["turns"] == 1
    assert (await planted.other.get("/v1/sessions", params={"query": WORDS})).json()["data"] == []
    assert [row["version"] for row in (await planted.other.get("/v1/policies")).json()["data"]] == [0]
    assert [m["id"] for m in (await planted.other.get("/v1/models")).json()["data"]] == [
        "scripted",
        "scripted@0",
    ]
    refused = await planted.other.get("/v1/status", params={"scope": "everyone"})
    assert refused.status_code == 403
    assert (await planted.other.get("/v1/status", params={"scope": "user:ben"})).status_code == 200


async def test_the_owner_sees_all(planted: Planted) -> None:
    said = await planted.other.post("/v1/chat/completions", json=CHAT)
    assert (await planted.owner.get(f"/v1/turns/{said.json()['id']}")).json()["scope"] == "user:ben"
    status = (await planted.owner.get("/v1/status", params={"scope": "user:ben"})).json()
    assert (status["scope"], status["funnel"]["turns"]) == ("user:ben", 2)
    assert {row["version"] for row in (await planted.owner.get("/v1/policies")).json()["data"]} == {0, 1}


async def test_live_updates_are_ones_own(planted: Planted) -> None:
    pulse = planted.system.dashboard.pulse_of("user:ben", "ben")
    first = await anext(pulse.listen())
    pulse.stop()
    assert json.loads(first.split(b"data: ")[1])["funnel"]["turns"] == 0


async def test_a_flush_reaches_ones_own_policy_only(planted: Planted) -> None:
    system = planted.system
    await planted.other.post("/v1/flush")
    found = await until(lambda: system.ledgers.serve.events_after(0, 99), "it is noted")
    system.ledgers.learn.pull([], found)
    assert system.ledgers.learn.flush_requested_at() is None
    assert system.ledgers.learn.flush_requested_at("everyone") is None
    asked = system.ledgers.learn.flush_requested_at("user:ben")
    assert asked is not None
    system.ledgers.learn.flushed(asked, "user:ben")
    assert system.ledgers.learn.flush_requested_at("user:ben") is None


async def test_nobody_is_served_anothers_version(planted: Planted) -> None:
    system = planted.system
    await asyncio.to_thread(promote, system.ledgers.policies, system.store, 1, "a test", "everyone")
    await system.follow()
    mine = await planted.owner.post("/v1/chat/completions", json=CHAT)
    other = await planted.other.post("/v1/chat/completions", json=CHAT)
    assert (mine.headers["x-policy-version"], other.headers["x-policy-version"]) == ("1", "0")
