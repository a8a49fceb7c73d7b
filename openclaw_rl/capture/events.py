"""Facts that become known about a turn after it was stored: rows that point back at it."""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_rl.types import Json, Message

NEXT_STATE = "next_state"
"""What followed the reply in the first main-line request that continues it."""
REGENERATED = "regenerated"
"""The same was asked again although the reply had been delivered."""
RETRIED = "retried"
"""The same was asked again because the reply had not been delivered: this turn does not count."""
CLOSED = "closed"
"""The session ended with this turn."""
FEEDBACK = "feedback"
"""A person's rating."""
FLUSH = "flush"
"""Work off now what waits; about no turn in particular."""

#: Kinds that make a turn judgeable. All but feedback and flush are stored once per turn.
READY_KINDS = (NEXT_STATE, REGENERATED, CLOSED)
REPEATABLE = (FEEDBACK, FLUSH)


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """To be stored."""

    turn_id: str | None
    kind: str
    at: float
    messages: list[Message] | None = None
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """As read back; ``seq`` follows the order of commits."""

    seq: int
    turn_id: str
    kind: str
    at: float
    messages: list[Message] | None
    data: Json
