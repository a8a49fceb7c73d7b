"""Attempts at a task compared with each other: both terms count, each by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openclaw_rl.algo import algorithm_for, create_algorithm, settings_for, step_size
from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.algo.rollout import Rollout
from openclaw_rl.config import LearnConfig
from openclaw_rl.testing.contracts.algorithm import FakeTeacher, lesson
from openclaw_rl.types import Example, Lesson, Standing, Verdict

HALF = (1.0, -1.0, 1.0, -1.0)


def step(standing: Standing | None) -> Lesson:
    return replace(lesson(Verdict(1, 1.0, "votes")), standing=standing)


async def learn(algorithm: Rollout, standing: Standing | None) -> list[Example]:
    return await algorithm.examples(step(standing), FakeTeacher())


@pytest.mark.parametrize(
    ("outcome", "process", "standing", "advantage"),
    [
        (1.0, 0.0, Standing(1.0, HALF, -0.9, (0.5, -0.9)), 1.0),
        (1.0, 0.0, Standing(-1.0, HALF, 0.9, (0.5, 0.9)), -1.0),
        (0.0, 1.0, Standing(1.0, HALF, -0.9, (0.5, -0.9)), -1.0),
        (1.0, 0.5, Standing(1.0, HALF, -0.9, (0.5, -0.9)), 0.5),
        (1.0, 0.5, Standing(1.0, HALF, None, (0.5, -0.9)), 1.0),
        (2.0, 0.5, Standing(100.0, (100.0, 0.0), 0.002, (0.001, 0.002)), 2.5),
        (1.0, 0.5, Standing(1.0, (1.0, 1.0, 1.0), 0.9, (0.9, -0.9)), 0.5),
        (1.0, 0.5, Standing(1.0, (1.0, -1.0, -1.0, -1.0), 0.0, (0.0, 0.0)), 3**0.5),
    ],
    ids=["solved", "failed", "process only", "both", "unjudged", "scales", "all solved", "one of four"],
)
def test_each_term_is_measured_by_its_own_spread(
    outcome: float, process: float, standing: Standing, advantage: float
) -> None:
    assert Rollout(outcome, process).advantage(standing) == pytest.approx(advantage)


async def test_the_process_weight_changes_what_is_learned() -> None:
    standing = Standing(1.0, HALF, -0.9, (0.5, -0.9, 0.5, 0.5))
    [none] = await learn(Rollout(process_weight=0.0), standing)
    [some] = await learn(Rollout(process_weight=0.3), standing)
    assert (some.signal_NK < none.signal_NK).all(), "a step that the judge disliked counts less"


async def test_attempts_that_went_alike_teach_nothing() -> None:
    assert await learn(Rollout(), Standing(1.0, (1.0,) * 4, 0.5, (0.5,) * 4)) == []
    assert await learn(Rollout(), Standing(-1.0, (-1.0,), -0.9, (-0.9,))) == [], "nor does a single one"


async def test_every_free_token_gets_it_and_no_forced_one() -> None:
    given = step(Standing(1.0, HALF, None, ()))
    tokens = [replace(token, forced=n == 1) for n, token in enumerate(given.turn.tokens)]
    [made] = await Rollout(importance_cap=1.0).examples(
        replace(given, turn=replace(given.turn, tokens=tokens)), FakeTeacher()
    )
    assert np.nonzero(made.signal_NK[:, 0])[0].tolist() == [0, 2, 3]
    assert made.source.kind == "rollout"


async def test_conversations_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="use another --algo for conversations"):
        await learn(Rollout(), None)


def test_the_scope_chooses_the_method() -> None:
    options = {"outcome_weight": 2.0, "process_weight": 0.7}
    settings = LearnConfig(env_algo_options=options, env_batch_size=5, env_max_staleness=1)
    assert isinstance(algorithm_for("user:ann", settings), Hinted)
    made = algorithm_for("env:toolcall", settings)
    assert isinstance(made, Rollout)
    assert (made.outcome_weight, made.process_weight, made.needs.batch_size) == (2.0, 0.7, 32)
    own = settings_for("env:toolcall", settings)
    assert (own.max_staleness, step_size(own, made.needs).samples) == (1, 5)
    assert step_size(settings_for("env:toolcall", LearnConfig()), made.needs).samples == 32
    assert settings_for("everyone", settings) is settings
    assert isinstance(create_algorithm(LearnConfig(algo="rollout")), Rollout)


async def test_a_step_of_few_samples_is_smaller() -> None:
    [made] = await learn(Rollout(), Standing(1.0, (1.0, -1.0), None, ()))
    scales = [Rollout(scale=0.5).batch([made] * number, {}).scale for number in (2, 8, 32, 100)]
    assert scales == [0.125, 0.25, 0.5, 0.5]
