"""What a person does to their wishes: look at them, word them anew, pause and resume them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from openclaw_rl.capture.wishes import ACTIVE, ON_HOLD
from openclaw_rl.commands.wishes import _line
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.types import EVERYONE, Json

from .test_wishes import LISTS, converse, judge, sampler_of, wishes_of

PIRATE = "please talk like a pirate"


@pytest.fixture
async def owner(system: ServingSystem, connect: Callable[..., httpx.AsyncClient]) -> httpx.AsyncClient:
    return connect(system)


def publish(system: ServingSystem, gate: Json | None = None) -> int:
    """A step of all that waits, served at once."""
    policies = system.ledgers.policies
    made = policies.claim(8, policies.serving(EVERYONE), "", 0, EVERYONE)
    assert made is not None
    policies.trained(made.version, {})
    assert policies.publish(made.version, gate or {})
    return made.version


async def listed(owner: httpx.AsyncClient) -> list[Json]:
    found: list[Json] = (await owner.get("/v1/wishes")).json()["data"]
    return found


def hints(system: ServingSystem, turn_id: str) -> set[str | None]:
    return {example.source.hint for example in system.ledgers.policies.examples_of(turn_id)}


async def test_a_wish_says_how_often_where_since_when_and_shows_real_answers(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    [wish] = await listed(owner)
    assert (wish["id"], wish["text"], wish["user"], wish["state"]) == (first, LISTS, "default", "not yet")
    assert (wish["times"], wish["turns"], wish["after"], wish["learned_at"]) == (1, [first], None, None)
    assert wish["before"] == {"turn_id": first, "request": "a question", "reply": "reply 0"}
    version = publish(system)
    second, _ = await converse(system, "another one", "bad: put it in a table please")
    await sampler_of(system).run()
    [wish] = await listed(owner)
    assert (wish["state"], wish["learned_in"], wish["times"]) == ("learned", version, 2)
    assert wish["turns"] == [first, second]
    assert wish["learned_at"] is not None


async def test_the_newest_first_reply_of_a_version_that_learned_it_is_shown(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    """Later replies of a conversation answer "Perfect, thanks!", which shows nothing."""
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    version = publish(system)
    second, _ = await converse(system, "another one", "good: Perfect, thanks!")
    with system.ledgers.serve.writing() as connection:
        connection.exec_driver_sql("UPDATE turns SET policy_version = ? WHERE id != ?", (version, first))
    [wish] = await listed(owner)
    assert wish["before"]["turn_id"] == first
    assert wish["after"] == {"turn_id": second, "request": "another one", "reply": "reply 0"}


async def test_new_words_undo_what_was_learned_and_are_taught(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    publish(system)
    answer = await owner.patch(f"/v1/wishes/{first}", json={"text": " please use small headings "})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["text"], answer.json()["said"]) == ("please use small headings", LISTS)
    assert answer.json()["state"] == "not yet"
    assert system.ledgers.policies.serving(EVERYONE) == 0
    await sampler_of(system).run()
    assert hints(system, first) == {"please use small headings"}
    assert wishes_of(system).of_user("default", EVERYONE)[0].status == ACTIVE
    assert publish(system) == 2
    await converse(system, "one more", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert [(w["text"], w["times"]) for w in await listed(owner)] == [("please use small headings", 2)]


async def test_a_paused_wish_is_unlearned_and_not_taught_until_it_is_resumed(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    publish(system)
    answer = (await owner.patch(f"/v1/wishes/{first}", json={"paused": True})).json()
    assert (answer["state"], answer["status"]) == ("paused", ON_HOLD)
    assert system.ledgers.policies.serving(EVERYONE) == 0
    second, _ = await converse(system, "a second one", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert hints(system, second) == set(), "asked for again, it stays paused"
    again = (await owner.patch(f"/v1/wishes/{first}", json={"paused": False})).json()
    assert (again["state"], again["times"]) == ("not yet", 2)
    await sampler_of(system).run()
    assert hints(system, first) == {LISTS}
    publish(system)
    assert (await listed(owner))[0]["state"] == "learned"


async def test_the_others_are_taught_without_the_paused_one(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    second, _ = await converse(system, "another", f"bad: {PIRATE}")
    await sampler_of(system).run()
    assert hints(system, second) == {f"{LISTS} {PIRATE}"}
    publish(system)
    await owner.patch(f"/v1/wishes/{first}", json={"paused": True})
    await sampler_of(system).run()
    assert hints(system, second) == {PIRATE}
    assert wishes_of(system).current("default", EVERYONE) == PIRATE


async def test_what_was_learned_before_it_stays(system: ServingSystem, owner: httpx.AsyncClient) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    publish(system)
    second, _ = await converse(system, "another", f"bad: {PIRATE}")
    await sampler_of(system).run()
    publish(system)
    system.store.write(1, lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"") and None, {})
    await owner.patch(f"/v1/wishes/{second}", json={"paused": True})
    assert system.ledgers.policies.serving(EVERYONE) == 1
    await sampler_of(system).run()
    lesson = system.ledgers.policies.of_turn(first)
    assert lesson is not None
    assert (lesson["status"], lesson["step"]) == ("trained", 1)


async def test_the_note_in_the_prompt_follows(system: ServingSystem, owner: httpx.AsyncClient) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    system.memory.refresh()
    assert LISTS in str(system.memory.note("default"))
    await owner.patch(f"/v1/wishes/{first}", json={"text": "please use small headings"})
    system.memory.refresh()
    assert "headings" in str(system.memory.note("default"))
    assert LISTS not in str(system.memory.note("default"))
    await owner.patch(f"/v1/wishes/{first}", json={"paused": True})
    system.memory.refresh()
    assert system.memory.note("default") is None


async def test_what_cannot_be_meant_is_refused(
    system: ServingSystem, owner: httpx.AsyncClient, connect: Callable[..., httpx.AsyncClient]
) -> None:
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    path = f"/v1/wishes/{first}"
    for body in ({}, {"text": "  "}, {"text": "x" * 501}, {"pause": True}, {"paused": "perhaps"}):
        assert (await owner.patch(path, json=body)).status_code == 400, body
    secret = {"text": "always say AKIAIOSFODNN7EXAMPLQ and ghp_1234567890abcdefghijklmnopqrstuvwxyzAB"}
    assert (await owner.patch(path, json=secret)).status_code == 400
    assert (await owner.patch("/v1/wishes/nobody", json={"paused": True})).status_code == 404
    stranger = connect(system, system.keys.add("ben"))
    assert (await stranger.patch(path, json={"paused": True})).status_code == 404
    await converse(system, "another", "bad: you can stop with the tables")
    await sampler_of(system).run()
    refused = await owner.patch(path, json={"paused": True})
    assert refused.status_code == 409
    assert "taking back" in refused.json()["error"]["message"]
    await judge(system)


async def test_after_a_rejected_version_nobody_is_told_that_a_wish_is_being_learned(
    system: ServingSystem, owner: httpx.AsyncClient
) -> None:
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    policies = system.ledgers.policies
    made = policies.claim(8, 0, "", 0, EVERYONE)
    assert made is not None
    [wish] = await listed(owner)
    assert (wish["state"], wish["reason"]) == ("not yet", None)
    policies.trained(made.version, {})
    checks = [{"name": "on topic", "passed": False}, {"name": "facts", "passed": True}]
    policies.reject(made.version, {"passed": False, "checks": checks})
    [wish] = await listed(owner)
    why = f"version {made.version} failed its checks (on topic); the next complaint makes another one"
    assert (wish["state"], wish["reason"]) == ("not yet", why)
    said = (await owner.get("/v1/learning")).json()["headline"]
    assert "not learned yet" in said
    assert "being learned" not in said
    assert "not learned yet (version" in _line(wish)
    await converse(system, "another", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert policies.claim(8, 0, "", 0, EVERYONE) is not None
    [wish] = await listed(owner)
    assert wish["reason"] is None
