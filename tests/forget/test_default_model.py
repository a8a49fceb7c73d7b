"""Unlearning and separation, bit for bit, with the default model and method, native kernels and two threads.

Everywhere else they are shown on a tiny network with the float kernel and one thread, which hide whatever
depends on the order of sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from openclaw_rl.judge.rules import degeneration
from openclaw_rl.train.teacher import EngineTeacher
from openclaw_rl.types import BASE_VERSION, ScoreRequest

from ..hinted_stack import HintedStack
from ..test_forgetting import WORDS, close, forgetting, spelled, weights
from ..test_forgetting_states import lose_states
from ..test_scopes import ANN, BEN

pytestmark = pytest.mark.forget
SHORT, TABLE = "please answer in one short sentence", "please put it in a table"


class DefaultStack(HintedStack):
    settings: ClassVar[dict[str, Any]] = {
        "renderer": None, "kernel": "native", "num_threads": 2, "train_threads": 2, "lora_rank": 16,
        "algo": "hinted", "batch_size": 1,
    }  # fmt: skip

    async def sample_and_learn(self) -> None:
        await self.sample(self.real_teacher())
        await self.learn()

    def real_teacher(self) -> EngineTeacher:
        return EngineTeacher(self.system.engine, self.renderer, lambda scope: None, degeneration)


@pytest.fixture
async def make(tmp_path: Path, model_path: Path) -> AsyncIterator[Callable[..., DefaultStack]]:
    stacks: list[DefaultStack] = []

    def one(source: DefaultStack | None = None) -> DefaultStack:
        home = tmp_path / f"home{len(stacks)}"
        made = DefaultStack(home, model_path) if source is None else source.copy(home)
        assert isinstance(made, DefaultStack)
        stacks.append(made)
        return made

    yield one
    for stack in stacks:
        await close(stack)


def planted(stack: DefaultStack) -> ScoreRequest:
    prompt = stack.renderer.render([{"role": "user", "content": "who are you?"}])
    return ScoreRequest([*prompt, *stack.renderer.encode(f"I am {WORDS}.")], len(prompt))


async def likelihood(stack: DefaultStack, version: int) -> list[float]:
    await stack.system.engine.load(stack.system.store.weights(version))
    scores = await stack.system.engine.score(replace(planted(stack), policy_version=version))
    return list(scores.logprobs)


async def test_what_is_trained_again_equals_weights_that_never_saw_it(
    make: Callable[..., DefaultStack],
) -> None:
    stack = make()
    await stack.say("tell me about snow", f"bad: {SHORT}")
    await stack.sample_and_learn()
    session, _ = await stack.say(f"tell me about {WORDS}", f"bad: {SHORT}, {WORDS}")
    await stack.say("tell me about rain", f"bad: {SHORT}")
    await stack.say("tell me about hail", f"bad: {TABLE}")
    await stack.sample(stack.real_teacher())
    never_saw = make(stack)
    await stack.learn()
    saw = stack.policies.serving(ANN)
    with_it, likely_with_it = weights(stack, saw), await likelihood(stack, saw)
    without_state = make(stack)
    lose_states(without_state, 1)

    for each in (stack, never_saw, without_state):
        receipt = forgetting(each).forget("session", session)
        assert receipt is not None
        assert each.policies.serving(ANN) == 1
        assert spelled(each.config.home) == []
        await each.learn()
    expected = never_saw.policies.serving(ANN)
    clean, likely = weights(never_saw, expected), await likelihood(never_saw, expected)
    for each in (stack, without_state):
        version = each.policies.serving(ANN)
        assert version > saw
        assert weights(each, version) == clean, "to the last bit"
        assert await likelihood(each, version) == likely
    assert with_it != clean, "it had made a difference"
    assert likely_with_it != likely


async def test_one_person_s_steps_leave_another_s_logprobs_as_they_are(
    make: Callable[..., DefaultStack],
) -> None:
    """Before and after them to the last bit, and for those who taught nothing. In between, her rows are in
    the same batch, and native kernels round a row by how many run with it."""
    stack = make()
    await stack.say("tell me about snow", f"bad: {SHORT}", user="ben")
    await stack.sample_and_learn()
    bens = stack.policies.serving(BEN)
    assert bens > BASE_VERSION
    engine = stack.system.engine
    await engine.load(stack.system.store.weights(bens))

    async def score() -> list[list[float]]:
        requests = [replace(planted(stack), policy_version=version) for version in (bens, BASE_VERSION)]
        return [list((await engine.score(request)).logprobs) for request in requests]

    await score()  # prompts are in the cache from now on
    before = await score()
    assert before[0] != before[1], "what he taught makes a difference"
    await stack.say("tell me about rain", f"bad: {TABLE}")
    learning, seen = asyncio.create_task(stack.sample_and_learn()), 0
    while not learning.done():
        for during, alone in zip(await score(), before, strict=True):
            assert during == pytest.approx(alone, abs=1e-3)
        seen += 1
        await asyncio.sleep(0.05)
    await learning
    assert seen > 1
    assert await score() == before
    assert stack.policies.serving(ANN) > bens
    await stack.system.follow()
    assert await score() == before
    assert stack.policies.serving(BEN) == bens
