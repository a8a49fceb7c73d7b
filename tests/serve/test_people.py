"""The owner says who has a key, whose policy answers them, and what they may use."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from openclaw_rl.capture.database import writing
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.types import Verdict

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


async def test_somebody_is_added_grouped_limited_and_shut_out(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    owner = connect(system)
    made = (await owner.post("/v1/users", json={"name": "ann"})).json()
    assert (made["name"], made["scope"], made["group"]) == ("ann", "user:ann", None)
    ann = connect(system, made["key"])
    assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 200
    changed = (await owner.patch("/v1/users/ann", json={"group": "us", "requests_per_minute": 1})).json()
    assert (changed["scope"], changed["requests_per_minute"]) == ("group:us", 1)
    assert [(await ann.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(2)][-1] == 429
    freed = (await owner.patch("/v1/users/ann", json={"requests_per_minute": None})).json()
    assert (freed["group"], freed["requests_per_minute"]) == ("us", None), "what is not named stays"
    await system.gateway.drain()
    listed = (await owner.get("/v1/users")).json()["data"]
    assert [(row["name"], row["num_sessions"]) for row in listed] == [("ann", 2), ("default", 0)]
    assert "key" not in listed[0], "a key is shown once"
    assert (await owner.delete("/v1/users/ann/key")).json() == {"name": "ann", "removed": True}
    assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 401
    back = await owner.post("/v1/users", json={"name": "ann"})
    assert back.status_code == 400
    assert "same_person" in back.json()["error"]["message"]
    assert back.json()["error"]["code"] == "former_user"
    assert (await owner.post("/v1/users", json={"name": "ann", "same_person": True})).status_code == 200


async def test_the_owner_looks_at_one_persons_conversations(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    owner, ann, ben = (
        connect(system, *key) for key in ((), (system.keys.add("ann"),), (system.keys.add("ben"),))
    )
    for who in (owner, ann):
        await who.post("/v1/chat/completions", json=CHAT)
    await system.gateway.drain()

    async def whose(client: httpx.AsyncClient, **params: str) -> list[str]:
        found = (await client.get("/v1/sessions", params=params)).json()["data"]
        return sorted(session["user"] for session in found)

    assert await whose(owner) == ["ann", "default"]
    assert await whose(owner, user="ann") == await whose(ann, user="ann") == ["ann"]
    assert await whose(owner, user="nobody") == []
    for path in ("/v1/sessions", "/v1/learning"):
        assert (await ben.get(path, params={"user": "ann"})).status_code == 403
        assert (await ben.get(path, params={"user": "ben"})).status_code == 200


async def test_first_replies_are_everybodys_or_one_persons(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    owner, ann = connect(system), connect(system, system.keys.add("ann"))
    for who, score in ((owner, 1), (ann, -1), (ann, -1)):
        turn_id = (await who.post("/v1/chat/completions", json=CHAT)).json()["id"]
        await system.gateway.drain()
        learn = system.ledgers.learn
        with writing(learn.db) as connection:
            learn._add_verdict(connection, turn_id, Verdict(score, 1.0, "votes"))

    async def last(**params: str) -> dict[str, int]:
        found = (await owner.get("/v1/learning", params=params)).json()
        return dict(found["first_replies"]["last"])

    assert await last() == {"good": 1, "of": 3}
    assert await last(user="default") == {"good": 1, "of": 1}
    assert await last(user="ann") == {"good": 0, "of": 2}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/users", {"name": "no spaces, please"}, 400),
        ("POST", "/v1/users", {"name": "default"}, 400),
        ("PATCH", "/v1/users/nobody", {"group": "us"}, 404),
        ("PATCH", "/v1/users/default", {}, 400),
        ("PATCH", "/v1/users/default", {"group": "a group"}, 400),
        ("PATCH", "/v1/users/default", {"tokens_per_day": 0}, 400),
        ("PATCH", "/v1/users/default", {"quota": 3}, 400),
        ("DELETE", "/v1/users/nobody/key", None, 404),
        ("DELETE", "/v1/users/default/key", None, 409),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, object] | None, status: int
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
