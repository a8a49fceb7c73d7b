"""Who answers: the base under foreign system prompts, for a while the version before in some chats."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from openclaw_rl.processes import parts
from openclaw_rl.roles import role_of
from openclaw_rl.serve.choice import VersionChoice
from openclaw_rl.types import EVERYONE, ChatRequest, Json
from tests.test_scopes import Stack, stack

__all__ = ["stack"]

JOB = "Extract the date. Answer only with the date as YYYY-MM-DD."
OTHER_JOB = "You are a router. Name one tool and nothing else."


def request(first: str = "Hello", system: str = "", **facts: Any) -> ChatRequest:
    nothing: Json = dict.fromkeys(field.name for field in fields(ChatRequest))
    messages = [{"role": "user", "content": first}]
    said = {"user": "ann", "messages": messages, "system": system, "headers": {}, "scope": EVERYONE}
    return ChatRequest(**{**nothing, **said, **facts})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def manifest(version: int) -> Json:
    roles = [role_of(JOB)] if version == 2 else []
    return {"parent": version - 1, "roles": roles} if version < 9 else {"parent": 8}


def test_foreign_system_prompts_are_answered_by_the_base() -> None:
    choice = VersionChoice(manifest)
    assert choice.instead(request(), 1, {0, 1}) is None
    assert choice.instead(request(system=JOB), 1, {0, 1}) == 0
    assert choice.instead(request(system="You are a helpful assistant."), 1, {0, 1}) is None
    assert choice.instead(request(system=JOB), 2, {0, 2}) is None, "somebody complained there"
    assert choice.instead(request(system=OTHER_JOB), 2, {0, 2}) == 0
    assert choice.instead(request(system=JOB), 9, {0, 9}) is None, "trained without asking where"
    assert choice.instead(request(system=JOB), 0, {0}) is None
    assert VersionChoice(manifest, elsewhere=False).instead(request(system=JOB), 1, {0, 1}) is None


def test_some_conversations_stay_with_the_version_before_for_a_while() -> None:
    clock = Clock()
    choice = VersionChoice(manifest, share=0.2, seconds=600, clock=clock)
    asked = [request(f"Question {n}") for n in range(500)]
    assert {choice.instead(each, 1, {0, 1}) for each in asked} == {None}, "nobody knows what was before it"
    assert choice.instead(asked[0], 2, {0, 1, 2}) in (None, 1)
    stayed = [each for each in asked if choice.instead(each, 2, {0, 1, 2}) == 1]
    assert 60 < len(stayed) < 140
    later = replace(stayed[0], messages=[*stayed[0].messages, {"role": "user", "content": "And then?"}])
    assert choice.instead(later, 2, {0, 1, 2}) == 1, "all of a conversation"
    assert choice.instead(stayed[0], 2, {0, 2}) is None, "it is no longer loaded"
    assert choice.instead(replace(stayed[0], headers={"x-turn-type": "side"}), 2, {0, 1, 2}) is None
    clock.now = 601.0
    assert {choice.instead(each, 2, {0, 1, 2}) for each in asked} == {None}


def test_a_rollback_is_for_everybody_at_once() -> None:
    choice = VersionChoice(manifest, share=0.5, seconds=600)
    asked = [request(f"Question {n}") for n in range(50)]
    for version in (1, 2, 1):
        choice.instead(asked[0], version, {0, 1, 2})
    assert {choice.instead(each, 1, {0, 1, 2}) for each in asked} == {None}


async def test_a_job_is_answered_as_if_nothing_had_been_learned(stack: Stack) -> None:
    body = {
        "model": "default", "seed": 1, "max_tokens": 12, "temperature": 0.8, "logprobs": True,
        "messages": [{"role": "system", "content": JOB}, {"role": "user", "content": "It was May 3, 2021."}],
    }  # fmt: skip

    async def ask(**more: Any) -> tuple[int, Any]:
        answer = await stack.http["ann"].post("/v1/chat/completions", json=body | more)
        choice = answer.json()["choices"][0]
        return int(answer.headers["x-policy-version"]), [t["logprob"] for t in choice["logprobs"]["content"]]

    before = await ask()
    await stack.complain("ann", 2)
    await stack.learn()
    assert stack.policies.serving_table() == {"user:ann": 1}
    name = stack.system.gateway.model_name
    learned = await ask(model=f"{name}@1")
    assert learned[0] == 1
    assert learned[1] != pytest.approx(before[1], abs=1e-4)
    other = [body["messages"][0], {"role": "user", "content": "We met on June 5, 1999, at noon."}]
    assert (await ask(messages=other))[0] == 1, "binary says nothing about where, so it holds everywhere"
    stack.system.store.update_manifest(1, roles=[])
    answerer = parts.build_answerer(stack.config, stack.system.engine, stack.renderer)
    stack.system.gateway.answerer = answerer  # as after a restart
    again = await ask()
    assert again == (0, pytest.approx(before[1], abs=1e-4))
    assert (await ask(model=f"{name}@1"))[0] == 1, "who names a version gets it"
    assert (await ask(messages=body["messages"][1:]))[0] == 1, "a chat"
