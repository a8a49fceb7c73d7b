"""A client that leaves stops the engine's work, and what there was is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, until

Ask = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_cancels_and_records(
    system: ServingSystem, engine: ScriptedEngine, ask: Ask, raw_call: Any, stream: bool, choices: int
) -> None:
    for _ in range(choices):
        engine.say("a long story", pause_after=6)
    call = raw_call(system, ask(stream=stream, n=choices))
    await until(lambda: engine.status().num_running == choices, "the engine works")
    if stream:
        await until(lambda: b'"content":"g"' in call.body, "six tokens are out")
    call.leave()
    await call.task
    assert engine.status().num_running == 0
    assert engine.num_cancelled == choices
    assert system.gateway.num_inflight == 0
    await system.gateway.drain()
    counts = system.ledgers.serve.counts()
    if stream:
        assert counts["finish_cancelled"] == choices
        turns = [turn for turns, _ in system.ledgers.serve.iter_sessions() for turn in turns]
        assert [(turn.reply["content"], len(turn.tokens)) for turn in turns] == [("a long", 6)] * choices
        assert len({turn.session_id for turn in turns}) == 1


async def test_leaving_a_reply_that_is_not_streamed_records_what_was_sampled(
    system: ServingSystem, engine: ScriptedEngine, ask: Ask, raw_call: Any
) -> None:
    engine.say("a long story", delay_s=0.01)
    call = raw_call(system, ask())
    await until(lambda: engine.status().num_running == 1, "the engine works")
    engine_started = await until(lambda: engine.requests, "the request arrived")
    assert engine_started
    call.leave()
    await call.task
    await system.gateway.drain()
    assert call.status in (None, 499)
    assert engine.num_cancelled == 1
    turns = system.ledgers.serve.counts()
    assert turns["turns"] == turns.get("finish_cancelled", 0)


async def test_leaving_before_the_first_token_leaves_no_turn_and_no_claim(
    system: ServingSystem, engine: ScriptedEngine, ask: Ask, raw_call: Any
) -> None:
    for stream in (False, True):
        engine.say("never", pause_after=0)
        call = raw_call(system, ask(stream=stream))
        await until(lambda: engine.status().num_running == 1, "the engine works")
        call.leave()
        await call.task
    await system.gateway.drain()
    assert (engine.num_cancelled, system.gateway.num_inflight) == (2, 0)
    assert system.ledgers.serve.counts()["turns"] == 0


async def test_a_stalled_connection_that_breaks_gives_its_place_back(
    system: ServingSystem, ask: Ask, raw_call: Any
) -> None:
    """The response head itself is stuck in the socket: the reply has not even begun."""
    call = raw_call(system, ask(stream=True), stalled=True)
    await until(lambda: system.gateway.num_inflight == 1, "the request was accepted")
    call.leave()
    await call.task
    assert system.gateway.num_inflight == 0


async def test_a_slow_reader_that_leaves_between_two_chunks(
    system: ServingSystem, engine: ScriptedEngine, ask: Ask, raw_call: Any
) -> None:
    """Cancelled while sending, not while sampling: the engine's work is closed all the same."""
    engine.say("a long story")
    call = raw_call(system, ask(stream=True), stalled_after=3)
    await until(lambda: call.num_sent == 3, "the third chunk is stuck")
    call.leave()
    await call.task
    await system.gateway.drain()
    assert (engine.num_cancelled, system.gateway.num_inflight) == (1, 0)
    assert system.ledgers.serve.counts()["finish_cancelled"] == 1


async def test_closing_the_system_waits_for_what_is_being_given_up(
    make_system: Any, ask: Ask, raw_call: Any
) -> None:
    system = make_system()
    system.engine.say("a long story", pause_after=3)
    call = raw_call(system, ask(stream=True))
    await until(lambda: b'"content":"l"' in call.body, "three tokens are out")
    call.task.cancel()  # what uvicorn does when draining takes too long
    await system.gateway.drain()
    assert system.engine.num_cancelled == 1
    assert system.ledgers.serve.counts()["finish_cancelled"] == 1
    await call.ended()


async def test_a_delivered_reply_is_marked_and_a_left_one_is_not(
    system: ServingSystem, engine: ScriptedEngine, ask: Ask, raw_call: Any, client: Any
) -> None:
    done = await client.post("/v1/chat/completions", json=ask())
    engine.say("a long story", pause_after=3)
    call = raw_call(system, ask(stream=True))
    await until(lambda: b'"content":"l"' in call.body, "three tokens are out")
    call.leave()
    await call.task
    await system.gateway.drain()
    shown = (await client.get(f"/v1/turns/{done.json()['id']}")).json()
    left = (await client.get(f"/v1/turns/{call.reply_id}")).json()
    assert (shown["delivered"], shown["state"]) == (True, "waiting")
    assert (left["delivered"], left["state"], left["finish_reason"]) == (False, "excluded", "cancelled")
