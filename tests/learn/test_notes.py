"""Notes: a wish is told at once, or once its person says so, and no longer when the weights hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.messages import NOTE
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system

from .conftest import Speaker
from .test_changed_wishes import publish
from .test_wishes import LISTS, converse, sampler_of

Connect = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., ServingSystem]]:
    made: list[ServingSystem] = []

    def make(**settings: Any) -> ServingSystem:
        made.append(scripted_system(tmp_path / f"home{len(made)}", **settings))
        return made[-1]

    yield make
    for system in made:
        await system.close()


async def told(system: ServingSystem, user: str = "default", instructions: str = "", **fields: Any) -> str:
    """The note of the person's next request, as the model got it."""
    system.memory.refresh()
    said = [{"role": "user", "content": "something else"}]
    if instructions:
        said.insert(0, {"role": "system", "content": instructions})
    reply = await Speaker(system, user).ask(said, **fields)
    await system.gateway.drain()
    turn = system.ledgers.serve.load_turn(reply["id"])
    assert turn is not None
    return str(turn.params.get(NOTE, ""))


async def shown(system: ServingSystem, connect: Connect) -> Any:
    [wish] = (await connect(system).get("/v1/wishes")).json()["data"]
    return wish


async def test_the_reply_after_the_first_complaint_is_told_and_nobody_else_s(start: Any) -> None:
    system = start(notes="on")
    assert await told(system) == ""
    await converse(system, "a question", f"bad: {LISTS}")
    assert LISTS in await told(system)
    assert await told(system, "ann") == ""


async def test_asked_first_it_waits_for_a_yes_and_takes_a_no(start: Any, connect: Connect) -> None:
    system = start(notes="ask")
    first, _ = await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert await told(system) == ""
    assert (await shown(system, connect))["note"] == "proposed"
    for noted, state in ((True, "given"), (False, "refused")):
        answer = await connect(system).patch(f"/v1/wishes/{first}", json={"noted": noted})
        assert (answer.status_code, answer.json()["note"]) == (200, state)
        assert (LISTS in await told(system)) is noted
    await connect(system).patch(f"/v1/wishes/{first}", json={"noted": True, "text": "please use headings"})
    assert "please use headings" in await told(system)


@pytest.mark.parametrize(("as_told", "note"), [(True, "withdrawn"), (False, "given")])
async def test_it_is_withdrawn_once_the_weights_hold_it_as_well_and_comes_back_when_it_is_missed(
    start: Any, connect: Connect, as_told: bool, note: str
) -> None:
    system = start(notes="on")
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert (await shown(system, connect))["note"] == "given"
    publish(system, {"as_told": {LISTS: as_told}})
    assert (await shown(system, connect))["state"] == "learned"
    assert (await shown(system, connect))["note"] == note
    assert (LISTS in await told(system)) is not as_told
    await converse(system, "another question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert LISTS in await told(system)
    assert (await shown(system, connect))["note"] == "given"


async def test_a_note_is_given_only_where_a_learned_version_would_answer(start: Any) -> None:
    system = start(notes="on")
    await converse(system, "a question", f"bad: {LISTS}")
    program = (
        "You extract dates from invoices. Reply with one ISO date and nothing else, never with a sentence."
    )
    assert LISTS in await told(system, instructions="You are a helpful assistant.")
    assert await told(system, instructions=program) == ""
    everywhere = start(notes="on", elsewhere="learned")
    await converse(everywhere, "a question", f"bad: {LISTS}")
    assert LISTS in await told(everywhere, instructions=program)


async def test_a_request_for_a_version_by_number_is_answered_by_its_weights_alone(start: Any) -> None:
    system = start(notes="on")
    await converse(system, "a question", f"bad: {LISTS}")
    assert await told(system, model="default@0") == ""


async def test_out_of_the_box_the_next_reply_knows(start: Any, connect: Connect) -> None:
    system = start()
    await converse(system, "a question", f"bad: {LISTS}")
    assert LISTS in await told(system)


async def test_replies_with_a_note_are_not_counted_as_a_version_s_own(start: Any, connect: Connect) -> None:
    system = start()
    await converse(system, "a question", f"bad: {LISTS}")
    system.memory.refresh()
    await converse(system, "a second question", "good")
    found = (await connect(system).get("/v1/learning")).json()["first_replies"]
    assert found["versions"] == [{"version": 0, "good": 0, "of": 1}]
    assert found["with_note"] == {"good": 1, "of": 1}


async def test_a_wish_that_fails_with_its_note_is_not_given_up_for_that(start: Any, connect: Connect) -> None:
    """A small model that ignores its system prompt may follow the same words in a message."""
    system = start()
    await converse(system, "a question", "bad: be funny please")
    for number in range(7):
        system.memory.refresh()
        await converse(system, f"question {number}", "bad: be funny please")
        await sampler_of(system).run()
    assert (await shown(system, connect))["state"] == "not yet"


@pytest.mark.parametrize("status", ["giving up", "not learnable", "pausing", "paused"])
async def test_what_is_no_longer_taught_is_no_longer_told(start: Any, connect: Connect, status: str) -> None:
    """Telling a model what it cannot do makes its replies worse."""
    system = start()
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert LISTS in await told(system)
    with system.ledgers.policies.db.begin() as connection:
        connection.exec_driver_sql("UPDATE wishes SET status = ?", (status,))
    system.memory.refresh()
    assert await told(system) == ""
    assert (await shown(system, connect))["note"] == "none"


async def test_what_is_taught_holds_without_the_note(start: Any) -> None:
    system = start(notes="on")
    await converse(system, "a question", f"bad: {LISTS}")
    system.memory.refresh()
    again, _ = await converse(system, "a second question", "bad: in French please")
    turn = system.ledgers.serve.load_turn(again)
    assert turn is not None
    assert LISTS in str(turn.params.get(NOTE))
    await sampler_of(system).run()
    renderer = system.gateway.renderer
    assert renderer is not None
    for example in system.ledgers.policies.examples_of(again):
        assert LISTS not in b"".join(renderer.token_bytes(i) for i in example.prompt_ids).decode()


async def test_a_note_keeps_its_budget(start: Any) -> None:
    system = start(notes="on", note_tokens=120)
    await converse(system, "q1", f"bad: please {'really ' * 10}use a table")
    await converse(system, "q2", "bad: please answer in French")
    note = await told(system)
    assert "French" in note
    assert "table" not in note
    assert len(note) <= 120
