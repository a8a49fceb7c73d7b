"""A secret reaches no byte of the data folder, and nothing is learned from a turn that held one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.transfer import import_sessions
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system, until
from openclaw_rl.types import Verdict

AWS = "AKIA" + "Q3ZP7XW2LMND5RTV"
MASKED = "[secret:aws-key]"
Chat = Callable[..., Any]


@pytest.fixture
async def systems(tmp_path: Path) -> AsyncIterator[Callable[..., ServingSystem]]:
    made: list[ServingSystem] = []

    def make(**settings: Any) -> ServingSystem:
        made.append(scripted_system(tmp_path / f"home{len(made)}", **settings))
        return made[-1]

    yield make
    for system in made:
        await system.close()


def client_of(system: ServingSystem) -> httpx.AsyncClient:
    key = system.keys.key_of("default")
    transport = httpx.ASGITransport(system.app())
    return httpx.AsyncClient(transport=transport, base_url="http://t", headers={"x-api-key": key or ""})


async def say(client: httpx.AsyncClient, *texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    answer = await client.post(
        "/v1/chat/completions", json={"model": "scripted", "messages": messages, **more}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def spelled(home: Path, words: str) -> list[str]:
    return [path.name for path in home.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


async def test_not_a_byte_of_it_is_kept(systems: Callable[..., ServingSystem]) -> None:
    system = systems()
    assert isinstance(system.engine, ScriptedEngine)
    async with client_of(system) as client:
        system.engine.say(f"You said {AWS}.")
        tool = {
            "type": "function",
            "function": {"name": "f", "description": AWS, "parameters": {"type": "object"}},
        }
        reply = await say(client, f"my key is {AWS}", tools=[tool], metadata={"note": AWS})
        assert AWS in reply["choices"][0]["message"]["content"], "the client gets the reply as it is"
        turn = await until(lambda: system.ledgers.serve.load_turn(reply["id"]), "the turn is stored")
    assert turn.messages == [{"role": "user", "content": f"my key is {MASKED}"}]
    assert turn.reply["content"] == f"You said {MASKED}."
    assert turn.secrets == "aws-key"
    assert (turn.tokens, turn.prompt_ids) == ([], []), "ids would spell it again"
    assert spelled(system.config.home, AWS) == []


async def test_such_a_turn_is_never_judged_or_trained(systems: Callable[..., ServingSystem]) -> None:
    system = systems()
    queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, 1800)
    async with client_of(system) as client:
        first = await say(client, f"my key is {AWS}")
        text = first["choices"][0]["message"]["content"]
        await say(client, f"my key is {AWS}", text, "No, shorter!")
        await client.post("/v1/feedback", json={"id": first["id"], "rating": "down", "text": "shorter"})
        await until(lambda: len(system.ledgers.serve.events_of(first["id"])) == 2, "both are noted")
        queue.pull()
        assert queue.ready(10, 4e9) == []
        view = (await client.get(f"/v1/turns/{first['id']}")).json()
    assert (view["state"], view["reason"]) == ("excluded", "a secret was found in it or after it")
    assert view["verdict"]["hints"] == []
    assert view["secrets"] == "aws-key"


async def test_nothing_is_learned_from_what_came_before_a_secret(
    systems: Callable[..., ServingSystem],
) -> None:
    system = systems()
    queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, 1800)
    async with client_of(system) as client:
        first = await say(client, "How do I sign in?")
        text = first["choices"][0]["message"]["content"]
        await say(client, "How do I sign in?", text, f"That is wrong, I use {AWS}")
        await until(lambda: len(system.ledgers.serve.events_of(first["id"])) == 2, "the reaction is noted")
        queue.pull()
        queue.settle(first["id"], Verdict(-1, 0.9, "llm", hints=("use it",)))
        view = (await client.get(f"/v1/turns/{first['id']}")).json()
    assert view["state"] == "excluded"
    assert view["next_state"] == [{"role": "user", "content": f"That is wrong, I use {MASKED}"}]
    assert spelled(system.config.home, AWS) == []


async def test_feedback_counts_without_its_words(systems: Callable[..., ServingSystem]) -> None:
    system = systems()
    async with client_of(system) as client:
        reply = await say(client, "Hi")
        await client.post("/v1/feedback", json={"id": reply["id"], "rating": "down", "text": f"use {AWS}"})
        found = await until(lambda: system.ledgers.serve.events_of(reply["id"]), "it is noted")
    assert found[0].data == {"score": -1, "text": None, "by": "default"}
    assert spelled(system.config.home, AWS) == []


@pytest.mark.parametrize(("mode", "stored"), [("off", True), ("drop", False)])
async def test_off_and_drop(systems: Callable[..., ServingSystem], mode: str, stored: bool) -> None:
    system = systems(redact=mode)
    async with client_of(system) as client:
        secret = await say(client, f"my key is {AWS}")
        other = await say(client, "Hi")
        await until(lambda: system.ledgers.serve.load_turn(other["id"]), "the other one is stored")
    assert (system.ledgers.serve.load_turn(secret["id"]) is not None) == stored
    assert bool(spelled(system.config.home, AWS)) == stored
    assert system.recorder.health().num_lost == 0


async def test_the_conversation_goes_on(systems: Callable[..., ServingSystem]) -> None:
    system = systems()
    async with client_of(system) as client:
        first = await say(client, f"my key is {AWS}")
        second = await say(client, f"my key is {AWS}", first["choices"][0]["message"]["content"], "And now?")
        turn = await until(lambda: system.ledgers.serve.load_turn(second["id"]), "the turn is stored")
    assert turn.continues == first["id"]


async def test_imported_turns_are_searched_too(systems: Callable[..., ServingSystem], tmp_path: Path) -> None:
    import io

    from openclaw_rl.capture.redact import create_redactor
    from openclaw_rl.capture.transfer import export_sessions

    open_one, other = systems(redact="off"), systems()
    async with client_of(open_one) as client:
        reply = await say(client, f"my key is {AWS}")
        await until(lambda: open_one.ledgers.serve.load_turn(reply["id"]), "the turn is stored")
    file = io.StringIO()
    export_sessions(open_one.ledgers.serve, file)
    assert AWS in file.getvalue()
    assert import_sessions(other.ledgers.serve, file.getvalue().splitlines(), create_redactor("mask")) == 1
    assert spelled(other.config.home, AWS) == []
