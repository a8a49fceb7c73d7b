"""What the routes for looking in show: sessions, turns, versions, the status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from openclaw_rl.processes.serving_system import ServingSystem

Ask = Callable[..., dict[str, Any]]
URL = "/v1/chat/completions"


async def test_a_turn(client: httpx.AsyncClient, system: ServingSystem, ask: Ask) -> None:
    answer = await client.post(URL, json=ask())
    await system.gateway.drain()
    turn = (await client.get(f"/v1/turns/{answer.json()['id']}")).json()
    usage = answer.json()["usage"]
    assert turn["id"] == answer.json()["id"]
    assert turn["session_id"] == answer.headers["x-session-id"]
    assert turn["kind"] in ("main", "side", "unknown")
    assert turn["state"] == "waiting"
    assert turn["reason"]
    assert (turn["next_state"], turn["verdict"]) == (None, None)
    assert turn["policy_version"] == 0
    assert turn["prompt_tokens"] == usage["prompt_tokens"]
    assert turn["completion_tokens"] == usage["completion_tokens"]
    assert turn["created_at"] > 1_700_000_000


async def test_a_conversation_is_one_session_without_any_header(
    client: httpx.AsyncClient, ask: Ask, engine: Any
) -> None:
    engine.say("I am well.")
    first = await client.post(URL, json=ask("How are you?"))
    history = [
        {"role": "user", "content": "How are you?"},
        first.json()["choices"][0]["message"],
        {"role": "user", "content": "Good."},
    ]
    second = await client.post(URL, json=ask(messages=history))
    other = await client.post(URL, json=ask("Something else"))
    session_id = first.headers["x-session-id"]
    assert second.headers["x-session-id"] == session_id
    assert other.headers["x-session-id"] != session_id
    session = (await client.get(f"/v1/sessions/{session_id}")).json()
    assert [turn["id"] for turn in session["turns"]] == [first.json()["id"], second.json()["id"]]
    assert session["turns"][1]["continues"] == first.json()["id"]
    assert session["user"] == "default"


async def test_a_stated_session_is_used(client: httpx.AsyncClient, ask: Ask) -> None:
    answer = await client.post(URL, json=ask(), headers={"x-session-id": "mine"})
    assert answer.headers["x-session-id"] == "mine"
    assert len((await client.get("/v1/sessions/mine")).json()["turns"]) == 1


async def test_sessions_in_pages(client: httpx.AsyncClient, ask: Ask) -> None:
    for number in range(5):
        await client.post(URL, json=ask(f"number {number}"), headers={"x-session-id": f"s{number}"})
    seen: list[str] = []
    after: str | None = None
    for _ in range(3):
        params = {"limit": "2", **({"after": after} if after else {})}
        page = (await client.get("/v1/sessions", params=params)).json()
        seen += [session["id"] for session in page["data"]]
        after = seen[-1]
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    assert page["has_more"] is False
    keys = {"id", "user", "opened_at", "closed_at", "num_turns"}
    assert all(keys <= session.keys() for session in page["data"])
    assert page["data"][0]["num_turns"] == 1


async def test_the_status_adds_up(client: httpx.AsyncClient, system: ServingSystem, ask: Ask) -> None:
    for _ in range(2):
        await client.post(URL, json=ask())
    await system.gateway.drain()
    status = (await client.get("/v1/status")).json()
    assert (status["status"], status["model"], status["policy_version"]) == ("ok", "scripted", 0)
    assert status["busy"] is False
    assert status["queues"] == {
        "running": 0, "waiting": 0, "judge": 0, "samples": 0, "samples_per_step": 1, "attempts": None,
    }  # fmt: skip
    funnel = status["funnel"]
    assert funnel["turns"] == sum(funnel["by_state"].values()) == 2
    assert {"ok", "error", "num_recorded", "num_unsaved", "num_lost"} <= status["ledger"].keys()
    assert status["ledger"]["num_recorded"] == 2
    assert {"last_step", "learn", "uptime_s"} <= status.keys()


async def test_models_and_policies(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["scripted", "scripted@0"]
    assert (await client.get("/v1/models/scripted")).json()["id"] == "scripted"
    (policy,) = (await client.get("/v1/policies")).json()["data"]
    keys = {"version", "parent", "status", "gate", "metrics", "num_samples", "created_at"}
    assert keys <= policy.keys()
    assert (policy["version"], policy["status"]) == (0, "serving")


async def test_another_user_does_not_continue_my_session(
    client: httpx.AsyncClient, system: ServingSystem, connect: Any, ask: Ask
) -> None:
    first = await client.post(URL, json=ask())
    history = [
        {"role": "user", "content": "Hi"},
        first.json()["choices"][0]["message"],
        {"role": "user", "content": "x"},
    ]
    async with connect(system, key=system.keys.add("ada")) as other:
        second = await other.post(URL, json=ask(messages=history))
        stated = await other.post(URL, json=ask(), headers={"x-session-id": first.headers["x-session-id"]})
    assert second.headers["x-session-id"] != first.headers["x-session-id"]
    assert stated.headers["x-session-id"] != first.headers["x-session-id"]
