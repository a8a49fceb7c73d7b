"""A turn with what came next, and what that says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.types.base import FinishReason, Message


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """Everything a judge may see of one turn, in the internal message form."""

    messages: list[Message]
    """The request, ephemeral context removed."""
    reply: Message
    next_state: list[Message] | None
    """All that followed the reply, whole and in order; None when the session ended with it."""
    finish_reason: FinishReason = "stop"
    regenerated: bool = False
    """The same request was asked again after this reply had been delivered."""
    own_limit: bool = False
    """Where the reply was cut off, the client had asked for no more tokens than these."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became known about a turn. A turn nobody could judge has no verdict at all."""

    score: int
    """+1, 0 or −1."""
    confidence: float
    """0..1; weak signs count less in training."""
    source: str
    """``feedback``, ``exclude`` (a person's word, too), ``rule:<name>`` or ``votes``."""
    votes: tuple[int | None, ...] = ()
    """None is a vote that could not be had."""
    hints: tuple[str, ...] = ()
    """How the reply should have differed, from the user or from facts of the environment."""
    trainable: bool = True
    reason: str = ""
    """In words for a person; for an untrainable turn, why."""


#: The source of a verdict on a step that was given up: it says nothing, and counts for nothing.
JUDGE_FAILED = "judge:failed"


class JudgeError(Exception):
    """No verdict could be reached; the turn stays unjudged and is tried again."""


class Judge(Protocol):
    """Says how good a turn was. Raises JudgeError rather than inventing a neutral verdict."""

    async def evaluate(self, case: JudgeCase) -> Verdict: ...

    async def close(self) -> None: ...
