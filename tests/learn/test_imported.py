"""Old complaints from elsewhere: judged, turned into wishes, learned, and known before that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.commands.trajectories import score_conversation
from openclaw_rl.imports import read_text
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system
from openclaw_rl.types import EVERYONE, OFF_POLICY, TurnRecord

from .conftest import Speaker
from .test_changed_wishes import publish
from .test_wishes import LISTS, judge, sampler_of, wishes_of


def old_conversations(number: int) -> str:
    said = [
        [("user", f"question {n}"), ("assistant", f"a paragraph {n}"), ("user", f"bad: {LISTS}"),
         ("assistant", "1. so"), ("user", "good")]
        for n in range(number)
    ]  # fmt: skip
    return "\n".join(json.dumps({"messages": [{"role": r, "content": c} for r, c in one]}) for one in said)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[ServingSystem]:
    system = scripted_system(tmp_path / "home", notes="on")
    yield system
    await system.close()


async def test_thirty_old_complaints_are_a_wish_known_at_once_and_learned(
    system: ServingSystem,
) -> None:
    renderer = system.gateway.renderer
    assert renderer is not None
    for conversation in read_text(old_conversations(30))[1]:
        entries, left_out = await score_conversation(conversation, system.engine, renderer, "")
        assert left_out == 0
        system.ledgers.serve.append(entries)
    await judge(system)
    await sampler_of(system).run()
    [wish] = wishes_of(system).of_user("default", EVERYONE)
    assert wish.text == LISTS
    assert system.ledgers.policies.waiting(EVERYONE)[0] > 0
    # Before any version has learned it, the person's next request is told of the wish.
    system.memory.refresh()
    assert LISTS in (system.memory.note("default") or "")
    assert publish(system) == 1
    [turn] = system.ledgers.serve.list_sessions(1, None, None)
    [first, *_] = (await Speaker(system).http.get(f"/v1/sessions/{turn['id']}")).json()["turns"]
    stored = system.ledgers.serve.load_turn(first["id"])
    assert stored is not None
    assert stored.params == {OFF_POLICY: True}


async def test_what_does_not_fit_the_context_is_left_out(system: ServingSystem) -> None:
    renderer = system.gateway.renderer
    assert renderer is not None
    said = [{"role": "user", "content": "x" * 5000}, {"role": "assistant", "content": "y"}]
    entries, left_out = await score_conversation({"messages": said}, system.engine, renderer, "")
    assert (entries, left_out) == ([], 1)


async def test_an_engine_that_does_not_tell_the_likeliest_tokens_is_not_asked_for_them(
    system: ServingSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyRL's JAX backend and Fireworks refuse such requests."""
    renderer, engine = system.gateway.renderer, system.engine
    assert renderer is not None
    monkeypatch.setattr(engine, "capabilities", replace(engine.capabilities, top_logprobs=False))
    [conversation] = read_text(old_conversations(1))[1]
    entries, _ = await score_conversation(conversation, engine, renderer, "")
    turns = [entry for entry in entries if isinstance(entry, TurnRecord)]
    assert len(turns) == 2
    assert {token.top_ids for turn in turns for token in turn.tokens} == {()}
    assert all(token.logprob < 0 for turn in turns for token in turn.tokens)
