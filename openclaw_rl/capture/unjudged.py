"""Turns that are not judged, and why: counted as they are stored, so that showing the funnel costs nothing.

A turn is left out for one reason at most. It no longer is once it turns out to be part of the conversation
after all, or gets a verdict without a judge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.types import TurnRecord

CANCELLED = "the reply was never completed: the client left, or the engine failed"
RETRIED = "the reply never arrived and was asked for again"
SIDE = "a side request (heartbeat, summary, title …), not part of the conversation"
#: Reason as shown to users -> counter.
COUNTERS = {CANCELLED: "out_cancelled", RETRIED: "out_retried", SIDE: "out_side"}
#: Kinds of events after which a turn is judged after all.
_JUDGED = ("next_state", "unsure_state", "feedback", "secret")


def why_left_out(kind: str, finish_reason: str, secrets: str, known: Collection[str]) -> str | None:
    """The reason, or None; ``known``: the kinds of events about the turn."""
    if secrets or any(event in known for event in _JUDGED):
        return None
    if finish_reason == "cancelled":
        return CANCELLED
    if "retried" in known:
        return RETRIED
    return SIDE if kind == "side" else None


def new_left_out(turns: Iterable[TurnRecord]) -> Counter[str]:
    """By counter, for new turns without events."""
    reasons = (why_left_out(turn.kind, turn.finish_reason, turn.secrets, ()) for turn in turns)
    return Counter(COUNTERS[reason] for reason in reasons if reason)


def count_left_out(
    connection: sa.Connection, condition: sa.ColumnElement[bool], since: dict[int, set[str]] | None = None
) -> Counter[str]:
    """By counter, for turns that match; ``since``: kinds of events about to be stored, by turn."""
    turns, events = schema.turns, schema.events
    columns = (turns.c.seq, turns.c.kind, turns.c.finish_reason, turns.c.secrets)
    maybe = (
        (turns.c.finish_reason == "cancelled")
        | (turns.c.kind == "side")
        | turns.c.seq.in_(
            sa.select(events.c.turn).where(events.c.turn == turns.c.seq, events.c.kind == "retried")
        )
    )
    rows = connection.execute(
        sa.select(*columns).where(condition, maybe if since is None else sa.true())
    ).all()
    known: dict[int, set[str]] = defaultdict(set)
    for batch in batched(row.seq for row in rows):
        said = sa.select(events.c.turn, events.c.kind).where(events.c.turn.in_(batch))
        for turn, kind in connection.execute(said):
            known[turn].add(kind)
    counted = Counter[str]()
    for row in rows:
        more = known[row.seq] | (since or {}).get(row.seq, set())
        reason = why_left_out(row.kind, row.finish_reason, row.secrets, more)
        if reason is not None:
            counted[COUNTERS[reason]] += 1
    return counted
