"""Events: facts that become known about a turn after it was stored, as rows that point back at it."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.content import Row, to_json
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.unjudged import count_left_out
from openclaw_rl.types import Json, Message

NEXT_STATE = "next_state"
"""What followed the reply in the first request of the conversation that continues it."""
UNSURE_STATE = "unsure_state"
"""The same, from a request with other instructions, tools or response format than the one answered: perhaps
from a graph node that inspects the answer. A ``NEXT_STATE`` replaces it."""
REGENERATED = "regenerated"
"""The same request was sent again although the reply had been delivered."""
RETRIED = "retried"
"""The same request was sent again because the reply had not been delivered: this turn does not count."""
CLOSED = "closed"
"""The session ended with this turn."""
FEEDBACK = "feedback"
"""A user's rating."""
EXCLUDE = "exclude"
"""A user excluded this turn from learning."""
INCLUDE = "include"
"""A user revoked the exclusion."""
EXCLUDE_SESSION, INCLUDE_SESSION = "exclude_session", "include_session"
"""The same two for the whole session that this turn opened, including future turns."""
SECRET = "secret"
"""What followed the reply held a secret: this turn is not learned from."""
WITHHELD = "withheld"
"""The client deleted this reply: it is no longer returned."""
REWARD = "reward"
"""The result of the episode that ended with this turn, in an environment."""
FLUSH = "flush"
"""A request to process everything that waits; not about a particular turn."""

#: Kinds that make a turn judgeable. All kinds but ``REPEATABLE`` are stored once per turn.
READY_KINDS = (NEXT_STATE, UNSURE_STATE, REGENERATED, CLOSED)
REACTIONS = (NEXT_STATE, UNSURE_STATE)
#: Kinds that decide whether a turn is judged at all.
_MATTER = {*REACTIONS, FEEDBACK, SECRET, RETRIED}
REPEATABLE = (FEEDBACK, FLUSH, EXCLUDE, INCLUDE, EXCLUDE_SESSION, INCLUDE_SESSION)


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event to store."""

    turn_id: str | None
    kind: str
    at: float
    messages: list[Message] | None = None
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as read back; ``seq`` follows the order of commits."""

    seq: int
    turn_id: str
    kind: str
    at: float
    messages: list[Message] | None
    data: Json


def store_events(
    connection: sa.Connection, events: Sequence[TurnEvent], seqs: Mapping[str, int], counters: Counter[str]
) -> bool:
    """Number, store and count new events in the ledger's transaction; True if there were any.

    An event about a turn that was never stored is left out.
    """
    table = schema.events
    numbered = [(0 if e.turn_id is None else seqs.get(e.turn_id), e) for e in events]
    known = {
        (row.turn, row.once)
        for batch in batched({turn for turn, _ in numbered if turn})
        for row in connection.execute(sa.select(table.c.turn, table.c.once).where(table.c.turn.in_(batch)))
    }
    rows: list[Row] = []
    for turn, event in numbered:
        once = None if event.kind in REPEATABLE else event.kind
        if turn is None or (once is not None and (turn, once) in known):
            continue
        if event.kind == UNSURE_STATE and (turn, NEXT_STATE) in known:
            continue
        known.add((turn, once))
        counters.update({"last_event": 1, f"event_{event.kind}": 1})
        text = to_json({"messages": event.messages, "data": event.data})
        data = zlib.compress(text.encode("utf-8", "surrogatepass"), 1)
        rows.append({"seq": counters["last_event"], "turn": turn, "kind": event.kind, "once": once,
                     "at": event.at, "data": data})  # fmt: skip
    about: dict[int, set[str]] = {}
    for row in rows:
        about.setdefault(row["turn"], set()).add(row["kind"])
    for batch in batched(turn for turn, kinds in about.items() if turn and kinds & _MATTER):
        which = schema.turns.c.seq.in_(batch)
        counters.subtract(count_left_out(connection, which))
        counters.update(count_left_out(connection, which, about))
    if rows:
        connection.execute(table.insert(), rows)
    return bool(rows)


def load_events(
    connection: sa.Connection, condition: sa.ColumnElement[bool], limit: int | None = None
) -> list[StoredEvent]:
    events, turns = schema.events, schema.turns
    query = (
        sa.select(events.c.seq, turns.c.id, events.c.kind, events.c.at, events.c.data)
        .outerjoin(turns, turns.c.seq == events.c.turn)
        .where(condition)
        .order_by(events.c.seq)
        .limit(limit)
    )
    found = []
    for seq, turn_id, kind, at, data in connection.execute(query):
        content = json.loads(zlib.decompress(data))
        found.append(StoredEvent(seq, turn_id or "", kind, at, content["messages"], content["data"]))
    return found


def reaction(of_turn: Iterable[StoredEvent]) -> StoredEvent | None:
    """The event with what followed the reply, if known."""
    known = {event.kind: event for event in of_turn if event.kind in REACTIONS}
    return known.get(NEXT_STATE) or known.get(UNSURE_STATE)


def excluded_sessions(db: sa.Engine, sessions: Sequence[int]) -> set[int]:
    """Those of the sessions, by number, that a user excluded and did not include again."""
    turns, events = schema.turns, schema.events
    newest: dict[int, str] = {}
    with db.connect() as connection:
        for batch in batched(set(sessions)):
            firsts = sa.select(sa.func.min(turns.c.seq).label("seq"), turns.c.session)
            first = firsts.where(turns.c.session.in_(batch)).group_by(turns.c.session).subquery()
            said = sa.and_(
                events.c.turn == first.c.seq, events.c.kind.in_((EXCLUDE_SESSION, INCLUDE_SESSION))
            )
            query = sa.select(first.c.session, events.c.kind).join(events, said).order_by(events.c.seq)
            newest.update({row.session: row.kind for row in connection.execute(query)})
    return {session for session, kind in newest.items() if kind == EXCLUDE_SESSION}


def is_excluded(of_turn: Sequence[StoredEvent], session_excluded: bool) -> bool:
    """By the newest decision about the turn itself, otherwise about its session."""
    said = [event.kind for event in of_turn if event.kind in (EXCLUDE, INCLUDE)]
    return said[-1] == EXCLUDE if said else session_excluded


def excluded_turns(db: sa.Engine, turn_ids: Iterable[str]) -> set[str]:
    """Those of the turns that a user excluded, individually or with their session."""
    turns, events, found = schema.turns, schema.events, set[str]()
    for batch in batched(set(turn_ids)):
        with db.connect() as connection:
            columns = (turns.c.id, turns.c.seq, turns.c.session)
            rows = connection.execute(sa.select(*columns).where(turns.c.id.in_(batch))).all()
            said = sa.select(events.c.turn, events.c.kind).where(
                events.c.turn.in_([row.seq for row in rows]), events.c.kind.in_((EXCLUDE, INCLUDE))
            )
            newest = {row.turn: row.kind for row in connection.execute(said.order_by(events.c.seq))}
        marked = excluded_sessions(db, [row.session for row in rows])
        default = {row.seq: EXCLUDE for row in rows if row.session in marked}
        found |= {row.id for row in rows if {**default, **newest}.get(row.seq) == EXCLUDE}
    return found
