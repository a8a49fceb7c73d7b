"""One of several wishes ends while complaints wait for a step that were to teach all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.worker import WISH_OVER
from openclaw_rl.types import Answer
from tests.hinted_stack import HintedStack
from tests.learn.test_wishes import Teacher
from tests.test_forgetting import close
from tests.test_scopes import ANN

TABLE, PIRATE = "please put it in a table", "please talk like a pirate"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[HintedStack]:
    made = HintedStack(tmp_path / "home", tiny_model(tmp_path / "model"))
    yield made
    await close(made)


async def learn(stack: HintedStack) -> None:
    worker = await stack.learner()
    worker._sampler.teach_again = stack.sampler().teach_again  # type: ignore[method-assign]
    while await worker.step():
        pass


async def complain(stack: HintedStack) -> tuple[str, str]:
    """Both wait: the first with one wish, the second with both."""
    made = []
    for said, wish in (("tell me about rain", TABLE), ("tell me about snow", PIRATE)):
        _, [turn_id, _] = await stack.say(said, f"bad: {wish}")
        made.append(turn_id)
        await stack.sample()
    return made[0], made[1]


def give_up(stack: HintedStack, turn_id: str) -> None:
    turn = stack.system.ledgers.serve.load_turn(turn_id)
    assert turn is not None
    for _ in range(6):
        stack.policies.wishes(relation, is_only_taking_back, is_wish).failed(turn)


def status(stack: HintedStack, turn_id: str) -> tuple[str, str | None]:
    row = stack.policies.of_turn(turn_id)
    assert row is not None
    return row["status"], row["reason"]


def hints(stack: HintedStack, turn_id: str) -> set[str | None]:
    return {example.source.hint for example in stack.policies.examples_of(turn_id)}


async def test_the_wish_that_remains_is_taught_without_the_one_that_ended(stack: HintedStack) -> None:
    rain, snow = await complain(stack)
    assert hints(stack, snow) == {f"{TABLE} {PIRATE}"}
    give_up(stack, rain)
    await learn(stack)
    assert status(stack, rain) == ("excluded", WISH_OVER)
    assert status(stack, snow) == ("trained", None)
    assert hints(stack, snow) == {PIRATE}
    assert stack.policies.serving(ANN) > 0


async def test_what_a_newer_complaint_teaches_as_well_is_not_taught_twice(stack: HintedStack) -> None:
    rain, snow = await complain(stack)
    await learn(stack)
    assert status(stack, rain) == ("excluded", WISH_OVER)
    assert status(stack, snow) == ("trained", None)
    assert stack.policies.serving(ANN) == 1


async def test_when_all_end_nothing_is_taught(stack: HintedStack) -> None:
    rain, snow = await complain(stack)
    give_up(stack, rain)
    give_up(stack, snow)
    await learn(stack)
    assert status(stack, rain) == status(stack, snow) == ("excluded", WISH_OVER)
    assert stack.policies.serving(ANN) == 0


class SaysNothing(Teacher):
    """Ends every other answer at once, and its server leaves out the token that ended it."""

    def __init__(self) -> None:
        self.asked = 0

    async def prepare_base(self) -> None:
        """It is the base."""

    async def likeliest(self, prompt_ids: list[int]) -> Answer:
        self.asked += 1
        ids = [7] * (self.asked % 2)
        top = np.array([[8] for _ in ids], np.int32)
        return Answer(ids, [-0.5] * len(ids), top, np.zeros(top.shape, np.float32), "", finished=True)


async def test_what_the_base_does_not_answer_holds_nothing(stack: HintedStack) -> None:
    """That failed the step, and with the same seed it failed again."""
    held = await stack.sampler(SaysNothing()).anchors(6, seed=1)
    assert [example.reply_ids for example in held] == [[7]] * 3
