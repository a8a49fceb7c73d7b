"""Turns groups of attempts into samples: all steps of a group are settled together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from openclaw_rl.types import (
    Algorithm,
    Attempt,
    AttemptGroup,
    Lesson,
    Scorer,
    SettledTurn,
    Standing,
    Step,
    TurnRecord,
    Verdict,
)

#: Groups processed before checking whether a step is due.
_PAGE = 8
NO_REWARD = "its episode has not come to its end, or its group lacks other attempts"
FAILED = "something else than the model failed in its group of attempts: the {failure}"
ALIKE = "all attempts at its task went alike"


class RolloutQueue(Protocol):
    """Source of groups and destination of samples. Synchronous; called in threads."""

    def pull(self) -> None:
        """Import rewards that arrived since the last call."""

    def complete(self, limit: int) -> list[AttemptGroup]: ...

    def settle(self, group: AttemptGroup, turns: Sequence[SettledTurn]) -> None: ...


class GroupSampler:
    def __init__(self, queue: RolloutQueue, algorithm: Algorithm) -> None:
        self._queue, self._algorithm = queue, algorithm

    async def run(self, scorer: Scorer, problem_of: ProblemOf) -> int:
        """Process some of the complete groups; returns how many."""
        await asyncio.to_thread(self._queue.pull)
        groups = await asyncio.to_thread(self._queue.complete, _PAGE)
        for group in groups:
            settled = [
                await self._settle(step, attempt, group, scorer, problem_of)
                for attempt in group.attempts
                for step in attempt.steps
            ]
            await asyncio.to_thread(self._queue.settle, group, settled)
        return len(groups)

    async def _settle(
        self, step: Step, attempt: Attempt, group: AttemptGroup, scorer: Scorer, problem_of: ProblemOf
    ) -> SettledTurn:
        score = _sign(attempt.reward or 0.0)
        failure = next((each.failure for each in group.attempts if each.reward is None), None)
        if not step.verdict.trainable:
            return SettledTurn(step.turn, score)  # counted with the verdicts
        problem = problem_of(step.turn, step.verdict)
        if failure is not None or problem is not None:
            return SettledTurn(step.turn, score, reason=problem or FAILED.format(failure=failure))
        lesson = Lesson(
            step.turn,
            replace(step.verdict, score=score),
            lambda hint: None,
            standing=standing(step, attempt, group),
        )
        made = await self._algorithm.examples(lesson, scorer)
        if not made:
            return SettledTurn(step.turn, score, reason=ALIKE)
        if not all(np.isfinite(each.signal_NK).all() and np.isfinite(each.old_NK).all() for each in made):
            return SettledTurn(step.turn, score, reason=NOT_FINITE)
        return SettledTurn(step.turn, score, [replace(each, scope=group.scope) for each in made])


class ProblemOf(Protocol):
    def __call__(self, turn: TurnRecord, verdict: Verdict, /) -> str | None:
        """Why a turn cannot be learned from, whatever its verdict."""


NOT_FINITE = "its log-probs are not finite numbers"


def standing(step: Step, attempt: Attempt, group: AttemptGroup) -> Standing:
    """How a step compares with its group: the rewards of all attempts, the process scores of all steps."""
    assert attempt.reward is not None
    rewards = tuple(each.reward for each in group.attempts if each.reward is not None)
    found = (process_of(other) for each in group.attempts for other in each.steps)
    processes = tuple(value for value in found if value is not None)
    return Standing(attempt.reward, rewards, process_of(step), processes)


def process_of(step: Step) -> float | None:
    """The step's process score; None if the judge failed or had nothing to go by, which is not neutral."""
    return step.verdict.score * step.verdict.confidence if step.verdict.confidence else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
