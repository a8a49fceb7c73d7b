"""A world that an agent acts in, for tasks that can be checked. Plain data, so that it may run elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.types.base import Json, Message, Tool


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: everything that ``reset`` needs to begin it, the same way each time."""

    id: str
    data: Json = field(default_factory=dict)
    """Whatever the environment makes of it, such as a seed, a repository or a question."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent is told."""

    messages: list[Message]
    """In the internal form: a user's words, or results of the tools it called."""
    tools: list[Tool] = field(default_factory=list)
    """What it may call now."""
    picture: bytes | None = field(default=None, compare=False, repr=False)
    """JPEG, for people who look at the episode afterwards; the agent is not shown it."""


@dataclass(frozen=True, slots=True)
class StepResult:
    observation: Observation
    done: bool = False
    """The episode is over; the next call is ``evaluate``."""
    hint: str | None = None
    """How the action should have differed, where the environment knows."""


def is_solved(score: float) -> bool:
    """What counts as solved, wherever attempts are counted: all of it, and not a part."""
    return score >= 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the episode went."""

    score: float
    """From -1, failed, to 1, solved."""
    solved: bool
    """As ``is_solved`` says of the score."""
    facts: Json = field(default_factory=dict)
    """What the score is made of, such as tests that passed."""


class Environment(Protocol):
    """One episode at a time. A fault of the agent is an observation; only a broken environment raises."""

    def tasks(self) -> list[Task]:
        """All of them, the same each time."""

    async def reset(self, task: Task) -> Observation:
        """Begin the task from its start, whatever became of the one before."""

    async def step(self, action: Message) -> StepResult:
        """Act with an assistant message: its words, or its tool calls. RuntimeError before ``reset``."""

    async def evaluate(self) -> Outcome:
        """How it went so far; asking changes nothing."""

    async def close(self) -> None:
        """Let go of what it holds; may be called again."""
