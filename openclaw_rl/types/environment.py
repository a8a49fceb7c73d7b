"""Environments that agents act in, with checkable tasks. Plain data, so one can run on another machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.types.base import Json, Message, Tool


@dataclass(frozen=True, slots=True)
class Task:
    """One task: everything that ``reset`` needs to start it, the same way each time."""

    id: str
    data: Json = field(default_factory=dict)
    """Defined by the environment, such as a seed, a repository or a question."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees."""

    messages: list[Message]
    """In the internal form: user messages, or results of the tools it called."""
    tools: list[Tool] = field(default_factory=list)
    """Tools it may call now."""
    picture: bytes | None = field(default=None, compare=False, repr=False)
    """JPEG, for people who review the episode later; the agent does not see it."""


@dataclass(frozen=True, slots=True)
class StepResult:
    observation: Observation
    done: bool = False
    """The episode is over; the next call is ``evaluate``."""
    hint: str | None = None
    """How the action should have differed, if the environment knows."""


def is_solved(score: float) -> bool:
    """Whether a score counts as solved, wherever attempts are counted; partial credit does not."""
    return score >= 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an episode."""

    score: float
    """From -1 (failed) to 1 (solved)."""
    solved: bool
    """``is_solved`` of the score."""
    facts: Json = field(default_factory=dict)
    """What the score is based on, such as the number of tests that passed."""


class Environment(Protocol):
    """One episode at a time. The agent's mistakes are observations; only a broken environment raises."""

    def tasks(self) -> list[Task]:
        """All tasks, the same each time."""

    async def reset(self, task: Task) -> Observation:
        """Start the task from the beginning, whatever happened to the previous one."""

    async def step(self, action: Message) -> StepResult:
        """Act on an assistant message: its text or its tool calls. RuntimeError before ``reset``."""

    async def evaluate(self) -> Outcome:
        """The outcome so far; has no side effects."""

    async def close(self) -> None:
        """Release all resources; may be called again."""
