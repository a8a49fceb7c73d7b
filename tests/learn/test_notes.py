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


async def told(system: ServingSystem, user: str = "default") -> str:
    """The note of the person's next request, as the model got it."""
    system.memory.refresh()
    reply = await Speaker(system, user).ask([{"role": "user", "content": "something else"}])
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


async def test_it_is_withdrawn_when_learned_and_comes_back_when_it_is_missed(
    start: Any, connect: Connect
) -> None:
    system = start(notes="on")
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert (await shown(system, connect))["note"] == "given"
    publish(system)
    assert await told(system) == ""
    assert (await shown(system, connect))["note"] == "withdrawn"
    await converse(system, "another question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert LISTS in await told(system)
    assert (await shown(system, connect))["note"] == "given"


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
