"""A teacher that somebody else unloads is loaded again; that is no turn's fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openclaw_rl.train.teacher import EngineTeacher
from openclaw_rl.types import ScoreRequest, Scores, Weights


class Engine:
    """Scores what it has loaded, nothing else."""

    def __init__(self) -> None:
        self.versions = {0}

    async def load(self, weights: Weights) -> None:
        self.versions.add(weights.version)

    async def unload(self, version: int) -> None:
        self.versions.discard(version)

    async def score(self, request: ScoreRequest) -> Scores:
        if request.policy_version not in self.versions:
            raise ValueError(f"policy version {request.policy_version} is not loaded")
        number = len(request.token_ids) - request.start
        return Scores([-1.0] * number, [[1]] * number, [[-1.0]] * number, None, [[-1.0]] * number)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def teacher_of(engine: Engine, folder: Path) -> EngineTeacher:
    return EngineTeacher(engine, None, lambda scope: Weights.in_folder(3, folder), lambda text: None)  # type: ignore[arg-type]


async def test_a_teacher_that_was_unloaded_between_two_questions(engine: Engine, tmp_path: Path) -> None:
    teacher = teacher_of(engine, tmp_path)
    await teacher.prepare("everyone")
    assert await teacher.mean_logprob([1, 2], [3]) == -1.0
    await engine.unload(3)
    assert await teacher.mean_logprob([1, 2], [3]) == -1.0
    await engine.unload(3)
    taught = await teacher.score([1, 2], [3], np.array([[3]], np.int32))
    assert taught.logprobs_NK.tolist() == [[-1.0]]


async def test_one_that_cannot_be_loaded_is_said_and_excludes_no_turn(engine: Engine, tmp_path: Path) -> None:
    async def load(weights: Weights) -> None:
        raise ValueError("the folder is empty")

    engine.load = load  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="version 3, cannot be loaded: the folder is empty"):
        await teacher_of(engine, tmp_path).prepare("everyone")


async def test_what_is_wrong_with_the_question_stays_wrong(engine: Engine, tmp_path: Path) -> None:
    async def score(request: ScoreRequest) -> Scores:
        raise ValueError("9000 tokens exceed the context length")

    teacher = teacher_of(engine, tmp_path)
    await teacher.prepare("everyone")
    engine.score = score  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="9000 tokens"):
        await teacher.mean_logprob([1, 2], [3])
