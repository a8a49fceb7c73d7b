"""A turn with its next state, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.types.base import FinishReason, Message


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """Everything a judge may see of one turn, in the internal message form."""

    messages: list[Message]
    """The request, with ephemeral context removed."""
    reply: Message
    next_state: list[Message] | None
    """Everything that followed the reply, in order, if it is not excessively long; None if the session ended
    with it."""
    finish_reason: FinishReason = "stop"
    regenerated: bool = False
    """The same request was sent again after this reply had been delivered."""
    own_limit: bool = False
    """If the reply was cut off, it was at a token limit that the client itself had set."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a turn. A turn that could not be judged has no verdict at all."""

    score: int
    """+1, 0 or −1."""
    confidence: float
    """0..1; weak evidence counts less in training."""
    source: str
    """``feedback`` or ``exclude`` (both set by a user), ``rule:<name>`` or ``votes``."""
    votes: tuple[int | None, ...] = ()
    """None is a vote that failed."""
    hints: tuple[str, ...] = ()
    """How the reply should have differed, from the user or from the environment's facts."""
    trainable: bool = True
    reason: str = ""
    """For people to read; on an untrainable turn, why it is untrainable."""


#: Source of the verdict on a step whose judging was given up; such a verdict carries no signal.
JUDGE_FAILED = "judge:failed"


class JudgeError(Exception):
    """No verdict could be reached; the turn stays unjudged and is retried."""


class Judge(Protocol):
    """Judges how good a turn was. Raises JudgeError rather than inventing a neutral verdict."""

    async def evaluate(self, case: JudgeCase) -> Verdict: ...

    async def close(self) -> None: ...
