"""Signing in, who may see what, and the routes behind the dashboard."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.processes import health
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve import pulse
from openclaw_rl.serve.signin import make_session
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.train.lessons import SampleMaker

Ask = Callable[..., dict[str, Any]]
URL = "/v1/chat/completions"
GUARD = {"x-requested-with": "openclaw-rl"}


@pytest.fixture
async def browser(system: ServingSystem, connect: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Without a key, but with the header that our own pages send."""
    async with connect(system, key="") as client:
        client.headers.update(GUARD)
        yield client


async def sign_in(browser: httpx.AsyncClient, key: str) -> httpx.Response:
    return await browser.post("/v1/login", json={"key": key})


def carry(cookie: str) -> dict[str, str]:
    """That session, whatever port the server is asked on."""
    return {"cookie": f"openclaw_rl_None={cookie}; openclaw_rl_80={cookie}"}


# --- signing in ------------------------------------------------------------------------------


async def test_a_key_opens_a_session_and_signing_out_ends_it(
    browser: httpx.AsyncClient, system: ServingSystem
) -> None:
    assert (await browser.get("/v1/me")).json() == {"user": None, "owner": False, "keys": True}
    assert (await browser.get("/v1/status")).status_code == 401
    answer = await sign_in(browser, str(system.keys.key_of("default")))
    assert answer.json() == {"user": "default", "owner": True, "keys": True}
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert str(system.keys.key_of("default")).lower() not in cookie
    assert (await browser.get("/v1/me")).json()["user"] == "default"
    await browser.post("/v1/logout")
    assert (await browser.get("/v1/me")).json()["user"] is None


async def test_signing_out_revokes_that_cookie_and_no_other(
    browser: httpx.AsyncClient, system: ServingSystem, connect: Any
) -> None:
    async def user_of(client: httpx.AsyncClient, cookie: str) -> str | None:
        return (await client.get("/v1/me", headers=carry(cookie))).json()["user"]  # type: ignore[no-any-return]

    key = str(system.keys.key_of("default"))
    kept, stolen = make_session("default", key), make_session("default", key)
    assert kept != stolen
    assert [await user_of(browser, cookie) for cookie in (kept, stolen)] == ["default", "default"]
    out = await browser.post("/v1/logout", headers=carry(stolen))
    assert out.status_code == 200
    assert [await user_of(browser, cookie) for cookie in (kept, stolen)] == ["default", None]
    used = await browser.post("/v1/flush", headers=carry(stolen))
    assert used.status_code == 401
    # Nor does it open anything after a restart, or at another process with this data folder.
    async with connect(system, key="") as again:
        assert [await user_of(again, cookie) for cookie in (kept, stolen)] == ["default", None]
        await again.post("/v1/logout", headers={**GUARD, **carry(kept)})
    assert await user_of(browser, kept) is None
    written = (system.config.home / "signed_out.txt").stat()
    assert written.st_mode & 0o777 == 0o600


async def test_a_wrong_key_opens_nothing(browser: httpx.AsyncClient) -> None:
    answer = await sign_in(browser, "sk-ocrl-wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [{"x-requested-with": ""}, {"x-requested-with": "other"}, {**GUARD, "origin": "http://localhost:8000"}],
)
async def test_another_page_cannot_use_the_session(
    browser: httpx.AsyncClient, system: ServingSystem, headers: dict[str, str]
) -> None:
    await sign_in(browser, str(system.keys.key_of("default")))
    assert (await browser.post("/v1/flush", headers=headers)).status_code == 403
    assert (await browser.post("/v1/login", json={"key": "x"}, headers=headers)).status_code == 403
    assert (await browser.post("/v1/flush", headers={"origin": "http://test"})).status_code == 200


async def test_without_keys_other_pages_still_cannot_decide_anything(make_system: Any, connect: Any) -> None:
    async with connect(make_system(auth=False, allowed_hosts="test"), key="") as client:
        assert (await client.get("/v1/me")).json() == {"user": "default", "owner": True, "keys": False}
        assert (await client.post("/v1/flush")).status_code == 200
        foreign = await client.post("/v1/flush", headers={"origin": "http://elsewhere.example"})
        assert foreign.status_code == 403


async def test_forged_expired_and_orphaned_sessions_are_refused(
    browser: httpx.AsyncClient, system: ServingSystem
) -> None:
    key = system.keys.add("ada")
    good = make_session("ada", key)
    user, expires, session_id, signature = good.split("~")
    bad = [
        make_session("ada", "another key"),
        make_session("ada", key, now=0),
        f"default~{expires}~{session_id}~{signature}",
        f"{user}~{int(expires) + 1}~{session_id}~{signature}",
        f"{user}~{expires}~another~{signature}",
        f"{user}~{expires}~{signature}",
        f"{user}~٣~{session_id}~{signature}", "", "~", "~~", "~~~", "a~b~c", "a~b~c~d",
    ]  # fmt: skip
    for value in bad:
        header = {b"cookie": carry(value)["cookie"].encode()}
        answer = await browser.get("/v1/status", headers=header)  # type: ignore[arg-type]
        assert answer.status_code == 401, value
    assert (await browser.get("/v1/status", headers=carry(good))).status_code == 200
    system.keys.remove("ada")
    assert (await browser.get("/v1/status", headers=carry(good))).status_code == 401


async def test_the_page_is_open_and_nothing_foreign_may_run_on_it(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (await browser.get("/web/../cli.py")).status_code in (401, 404)
    assert (await browser.get("/web/%2e%2e/cli.py")).status_code == 404
    refused = await browser.get("/v1/status")
    assert refused.headers["x-content-type-options"] == "nosniff"


# --- other people's turns --------------------------------------------------------------------


async def test_another_user_can_neither_read_nor_rate_nor_exclude_my_turns(
    client: httpx.AsyncClient, system: ServingSystem, connect: Any, ask: Ask
) -> None:
    answer = await client.post(URL, json=ask("a secret word: xylophone"))
    turn, session = answer.json()["id"], answer.headers["x-session-id"]
    await system.gateway.drain()
    system.dashboard.index()
    async with connect(system, key=system.keys.add("ada")) as ada:
        for method, path, body in (
            ("GET", f"/v1/turns/{turn}", None),
            ("GET", f"/v1/turns/{turn}/tokens", None),
            ("POST", f"/v1/turns/{turn}/exclude", None),
            ("POST", f"/v1/turns/{turn}/include", None),
            ("GET", f"/v1/sessions/{session}?text=true", None),
            ("POST", f"/v1/sessions/{session}/exclude", None),
            ("POST", f"/v1/sessions/{session}/include", None),
            ("POST", f"/v1/sessions/{session}/close", None),
            ("POST", "/v1/feedback", {"id": turn, "rating": "down"}),
        ):
            assert (await ada.request(method, path, json=body)).status_code == 404, path
        assert (await ada.get("/v1/sessions")).json()["data"] == []
        assert (await ada.get("/v1/sessions", params={"query": "xylophone"})).json()["data"] == []
        assert (await ada.post("/v1/policies/0/promote")).status_code == 403
        assert (await ada.post("/v1/policies/rollback")).status_code in (403, 409)
        assert (await ada.post("/v1/policies/1/export", json={})).status_code == 403
    assert (await client.get("/v1/sessions", params={"query": "xylophone"})).json()["data"][0][
        "id"
    ] == session


# --- looking in ------------------------------------------------------------------------------


async def test_sessions_are_found_by_what_was_said(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask, engine: ScriptedEngine
) -> None:
    for number in range(5):
        engine.say(f"Answer number{number} about gardens")
        await client.post(URL, json=ask(f"Question {number}?"), headers={"x-session-id": f"s{number}"})
    await system.gateway.drain()
    assert system.dashboard.index() == 5
    assert system.dashboard.index() == 0

    async def find(query: str, **params: Any) -> list[str]:
        found = await client.get("/v1/sessions", params={"query": query, **params})
        return [session["id"] for session in found.json()["data"]]

    assert await find("number3") == ["s3"]
    assert await find("gard question") == ["s4", "s3", "s2", "s1", "s0"]
    assert await find("gardens", limit=2, after="s3") == ["s2", "s1"]
    assert await find("nothing of the kind") == []
    assert await find('"; DROP TABLE words; --') == []
    assert await find("***") == []


async def test_a_session_with_its_texts_in_pages(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    messages: list[dict[str, Any]] = []
    for number in range(3):
        messages.append({"role": "user", "content": f"say {number}"})
        answer = await client.post(URL, json=ask(messages=messages), headers={"x-session-id": "long"})
        messages.append(answer.json()["choices"][0]["message"])
    await system.gateway.drain()
    page = (await client.get("/v1/sessions/long", params={"limit": 2, "text": True})).json()
    assert [turn["input"][0]["content"] for turn in page["turns"]] == ["say 0", "say 1"]
    assert page["turns"][0]["reply"]["content"] == "Hello!"
    assert (page["num_turns"], page["has_more"]) == (3, True)
    after = page["turns"][-1]["id"]
    rest = (await client.get("/v1/sessions/long", params={"limit": 2, "after": after, "text": True})).json()
    assert [turn["input"][0]["content"] for turn in rest["turns"]] == ["say 2"]
    assert rest["has_more"] is False
    assert (await client.get("/v1/sessions")).json()["data"][0]["title"] == "say 0"


async def test_the_tokens_of_a_reply(client: httpx.AsyncClient, system: ServingSystem, ask: Ask) -> None:
    turn = (await client.post(URL, json=ask())).json()["id"]
    await system.gateway.drain()
    shown = (await client.get(f"/v1/turns/{turn}/tokens")).json()
    assert "".join(token["text"] for token in shown["tokens"]).startswith("Hello!")
    assert all(token["advantage"] is None for token in shown["tokens"])
    assert shown["input"] == [{"role": "user", "content": "Hi"}]


async def test_learning_before_anything_was_learned(client: httpx.AsyncClient) -> None:
    learning = (await client.get("/v1/learning")).json()
    assert learning == {
        "headline": "Nothing to learn from yet. Talk to it and tell it how to answer better.",
        "rewards": {"turns": 0, "turns_per_point": 1, "points": []},
        "swaps": [],
        "first_replies": {
            "versions": [],
            "with_note": {"good": 0, "of": 0},
            "last": {"good": 0, "of": 0},
        },
    }
    status = (await client.get("/v1/status")).json()
    assert (status["last_swap"], status["traffic"]["requests_per_s"]) == (None, 0)


async def test_results_are_shown_as_they_lie_there(client: httpx.AsyncClient, system: ServingSystem) -> None:
    assert (await client.get("/v1/results")).json()["data"] == []
    folder = system.config.home / "evals"
    folder.mkdir()
    (folder / "one.json").write_text('{"title": "One"}')
    (folder / "broken.json").write_text("{")
    assert (await client.get("/v1/results")).json()["data"] == [{"name": "one", "result": {"title": "One"}}]


async def test_versions_answer_side_by_side_and_nothing_is_kept(
    client: httpx.AsyncClient, engine: ScriptedEngine, chunks: Any
) -> None:
    engine._versions[1] = None  # type: ignore[assignment]
    answer = await client.post("/v1/compare", json={"prompt": "Hi", "versions": [0, 1]})
    events = chunks(answer.text)
    assert events[-1] == "[DONE]"
    for version in (0, 1):
        mine = [event for event in events[:-1] if event["version"] == version]
        assert "".join(event.get("text", "") for event in mine) == "Hello!"
        assert mine[-1]["done"]
    assert (await client.get("/v1/sessions")).json()["data"] == []
    missing = await client.post("/v1/compare", json={"prompt": "Hi", "versions": [0, 9]})
    assert missing.status_code == 404
    assert (await client.get("/v1/policies/9")).status_code == 404
    assert (await client.post("/v1/policies/9/export", json={"format": "peft"})).status_code == 404


async def test_live_updates_say_what_changed(
    system: ServingSystem, client: httpx.AsyncClient, ask: Ask
) -> None:
    beat = pulse.Pulse(partial(health.status, system), look_s=0.02)
    stream = beat.listen()
    first = json.loads((await anext(stream)).split(b"data: ")[1])
    await client.post(URL, json=ask())
    await system.gateway.drain()
    later = json.loads((await anext(stream)).split(b"data: ")[1])
    while later["funnel"]["turns"] == first["funnel"]["turns"]:
        later = json.loads((await anext(stream)).split(b"data: ")[1])
    assert later["funnel"]["turns"] == first["funnel"]["turns"] + 1
    beat.stop()
    assert len([event async for event in stream]) <= 1, "it ends"


# --- excluding -------------------------------------------------------------------------------


def pull(system: ServingSystem) -> None:
    LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, 1800).pull()


async def settle(system: ServingSystem) -> None:
    """The sampler, for turns that it never has to ask anybody about."""
    sampler = SampleMaker(system.ledgers.policies, None, None, None, None, 0.0)  # type: ignore[arg-type]
    for seq, turn_id in system.ledgers.policies.pending(100):
        await sampler._settle(seq, turn_id)


async def test_an_excluded_turn_teaches_nothing_whatever_is_said_later(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    turn = (await client.post(URL, json=ask())).json()["id"]
    await system.gateway.drain()
    assert (await client.post(f"/v1/turns/{turn}/exclude")).json()["excluded"] is True
    await client.post("/v1/feedback", json={"id": turn, "rating": "up"})
    pull(system)
    await settle(system)
    shown = (await client.get(f"/v1/turns/{turn}")).json()
    assert (shown["state"], shown["reason"]) == ("excluded", "a person excluded it from training")
    funnel = (await client.get("/v1/status")).json()["funnel"]
    assert funnel["by_state"]["excluded"] == 1
    assert sum(funnel["by_state"].values()) == funnel["turns"] == 1
    assert funnel["by_reason"] == {"a person excluded it from training": 1}


async def test_an_excluded_session_stays_excluded(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    headers = {"x-session-id": "private"}
    first = (await client.post(URL, json=ask("one"), headers=headers)).json()["id"]
    await system.gateway.drain()
    assert (await client.post("/v1/sessions/private/exclude")).json()["learned_already"] == []
    later = (await client.post(URL, json=ask("two"), headers=headers)).json()["id"]
    other = (await client.post(URL, json=ask("three"))).json()["id"]
    await system.gateway.drain()
    pull(system)
    await settle(system)
    for turn, state in ((first, "excluded"), (later, "excluded"), (other, "waiting")):
        assert (await client.get(f"/v1/turns/{turn}")).json()["state"] == state


async def test_an_exclusion_can_be_taken_back(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    turn = (await client.post(URL, json=ask())).json()["id"]
    await system.gateway.drain()

    async def look() -> tuple[str, bool, dict[str, int]]:
        pull(system)
        await settle(system)
        shown = (await client.get(f"/v1/turns/{turn}")).json()
        funnel = (await client.get("/v1/status")).json()["funnel"]
        assert sum(funnel["by_state"].values()) == funnel["turns"] == 1
        return shown["state"], shown["excluded"], funnel["by_reason"]

    for _ in range(2):  # and again
        assert (await client.post(f"/v1/turns/{turn}/exclude")).json() == {"id": turn, "excluded": True}
        assert await look() == ("excluded", True, {"a person excluded it from training": 1})
        assert (await client.post(f"/v1/turns/{turn}/include")).json() == {"id": turn, "excluded": False}
        assert await look() == ("waiting", False, {})
    # A change of mind before anybody took it up.
    for word in ("exclude", "include", "exclude"):
        await client.post(f"/v1/turns/{turn}/{word}")
    assert (await look())[:2] == ("excluded", True)
    await client.post(f"/v1/turns/{turn}/include")
    await client.post(f"/v1/turns/{turn}/exclude")
    assert (await look())[:2] == ("excluded", True)


async def test_an_excluded_session_can_be_taken_back_in(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    async def say(text: str) -> str:
        answer = await client.post(URL, json=ask(text), headers={"x-session-id": "private"})
        await system.gateway.drain()
        return str(answer.json()["id"])

    async def look() -> list[tuple[str, bool]]:
        pull(system)
        await settle(system)
        session = (await client.get("/v1/sessions/private")).json()
        return [(turn["state"], turn["excluded"]) for turn in session["turns"]]

    first = await say("one")
    await client.post("/v1/sessions/private/exclude")
    later = await say("two")
    assert await look() == [("excluded", True)] * 2
    assert (await client.get("/v1/sessions/private")).json()["excluded"] is True

    # One turn of it; those to come stay out.
    await client.post(f"/v1/turns/{later}/include")
    third = await say("three")
    await client.post(f"/v1/turns/{third}/include")  # before anybody has seen it
    await say("four")
    assert await look() == [("excluded", True), ("waiting", False), ("waiting", False), ("excluded", True)]

    assert (await client.post("/v1/sessions/private/include")).json()["excluded"] is False
    await say("five")
    assert await look() == [("waiting", False)] * 5
    assert (await client.get("/v1/sessions/private")).json()["excluded"] is False
    await client.post(f"/v1/turns/{first}/exclude")
    assert [state for state, _ in await look()] == ["excluded", *["waiting"] * 4]


async def test_half_a_character_is_shown_as_the_model_read_it(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    content = b'{"model": "scripted", "messages": [{"role": "user", "content": "half \\ud800"}]}'
    answer = await client.post(URL, content=content, headers={"content-type": "application/json"})
    await system.gateway.drain()
    system.dashboard.index()
    shown = (await client.get("/v1/sessions")).json()["data"][0]
    assert shown["title"] == "half \ufffd"
    assert (await client.get(f"/v1/sessions/{shown['id']}?text=true")).status_code == 200
    assert (await client.get(f"/v1/turns/{answer.json()['id']}/tokens")).status_code == 200
