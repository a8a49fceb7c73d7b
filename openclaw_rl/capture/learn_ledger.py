"""The learn process's ledger: turns that wait for the judge, and verdicts.

A separate database file from the serve ledger's (one PostgreSQL database holds both), so that a
long transaction of one process never delays the other. Turns and events are imported by number,
each exactly once; a verdict and the end of its task are one transaction. A process killed at any
instruction therefore judges no turn twice and misses none.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from openclaw_rl.capture import database
from openclaw_rl.capture.content import Row, to_json
from openclaw_rl.capture.decided import EXCLUDED, HELD_SECRET, INCLUDED, feedback_verdict
from openclaw_rl.capture.events import (
    EXCLUDE,
    EXCLUDE_SESSION,
    FEEDBACK,
    FLUSH,
    INCLUDE,
    INCLUDE_SESSION,
    NEXT_STATE,
    REACTIONS,
    READY_KINDS,
    REWARD,
    SECRET,
    StoredEvent,
)
from openclaw_rl.capture.migrate import LEARN
from openclaw_rl.capture.numbers import LAST, newest, next_number
from openclaw_rl.types import Json, Scope, Verdict

metadata = sa.MetaData()
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: Turns without a verdict. ``ready`` is what made a turn judgeable; null if nothing has yet.
tasks = sa.Table(
    "judge_tasks",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("ready", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("next_try_at", sa.Double, nullable=False, default=0.0),
    sa.Column("error", sa.Text),
    sa.Index("judge_tasks_by_time", "ready", "next_try_at"),
)

#: Append-only; a user's feedback is a later row and overrides the judge's verdicts.
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    sa.Column("turn_id", sa.Text, nullable=False, index=True),
    sa.Column("score", sa.Integer, nullable=False),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("votes", sa.Text, nullable=False),
    sa.Column("hints", sa.Text, nullable=False),
    sa.Column("trainable", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("judged_at", sa.Double, nullable=False),
)

#: How far the serve ledger was read (``cursor_*``), and numbers of turns by state.
marks = sa.Table(
    "learn_marks",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
)

#: Only the columns that verdicts depend on; ``samples.py`` defines the table.
_samples = sa.table("samples", sa.column("turn_id"), sa.column("step"))

_MAX_BACK_OFF_S = 300.0


@dataclass(frozen=True, slots=True)
class NewTurn:
    """The fields of a stored turn that the learn ledger needs."""

    seq: int
    id: str
    created_at: float
    judgeable: bool
    """False for side requests and cancelled replies."""
    excluded: bool = False
    """Whether it belongs to an excluded session."""
    secret: bool = False
    """Whether it held a secret."""


@dataclass(frozen=True, slots=True)
class UnjudgedTurn:
    """A turn that waits for a verdict."""

    turn_id: str
    created_at: float
    ready: str | None
    """What made it judgeable; None if nothing has yet."""


class LearnLedger:
    """The learn process's ledger. Writers take turns; any process may read."""

    def __init__(self, url: str) -> None:
        self.db = database.connect(sa.make_url(url))
        try:
            with database.creating(self.db) as connection:
                LEARN.run(connection)
        except BaseException:
            self.db.dispose()
            raise
        self.guard()
        self._insert = postgresql.insert if self.db.dialect.name == "postgresql" else sqlite.insert

    def guard(self, *checks: Callable[[sa.Connection], None]) -> None:
        """Run the checks at the start of each write transaction, after it has got the write lock."""
        turns = [database.take_turns] if self.db.dialect.name == "postgresql" else []
        database.guard_writing(self.db, *turns, *checks)

    # --- importing work ----------------------------------------------------------------------

    def cursors(self) -> tuple[int, int]:
        """The last turn and the last event that were imported."""
        with self.db.connect() as connection:
            values = self.marks(connection)
        return int(values["cursor_turns"]), int(values["cursor_events"])

    def pull(
        self,
        turns: Sequence[NewTurn],
        events: Sequence[StoredEvent],
        reopened: Mapping[str, UnjudgedTurn] | None = None,
    ) -> None:
        """Import new turns and events, and advance the cursors, in one transaction.

        ``reopened``: tasks for the judgeable turns that the events include again.
        """
        if not turns and not events:
            return
        with database.writing(self.db) as connection:
            rows = [{"turn_id": t.id, "created_at": t.created_at} for t in turns if t.judgeable]
            if rows:
                connection.execute(self._insert(tasks).on_conflict_do_nothing(), rows)
            for event in events:
                if event.kind == INCLUDE:
                    self._include(connection, event.turn_id, (reopened or {}).get(event.turn_id))
                else:
                    self._take(connection, event)
            for turn in turns:
                if turn.secret:
                    self._add_verdict(connection, turn.id, HELD_SECRET)
                elif turn.excluded and turn.judgeable and self._verdict(connection, turn.id) is None:
                    self._add_verdict(connection, turn.id, EXCLUDED)
            if turns:
                self.set_mark(connection, "cursor_turns", turns[-1].seq)
            if events:
                self.set_mark(connection, "cursor_events", events[-1].seq)

    def _take(self, connection: sa.Connection, event: StoredEvent) -> None:
        if event.kind == FEEDBACK:
            self._add_verdict(connection, event.turn_id, feedback_verdict(event.data))
        elif event.kind == EXCLUDE:
            self._add_verdict(connection, event.turn_id, EXCLUDED)
        elif event.kind == SECRET:
            self._add_verdict(connection, event.turn_id, HELD_SECRET)
        elif event.kind in (EXCLUDE_SESSION, INCLUDE_SESSION, REWARD):
            pass  # turns have their own events, and new ones come marked; `rollouts` reads rewards
        elif event.kind == FLUSH:
            connection.execute(tasks.update().where(tasks.c.ready.is_not(None)).values(next_try_at=0.0))
            self.set_mark(connection, f"flush_asked{_whose(event.data.get('scope'))}", event.at)
        elif event.kind in READY_KINDS:
            # What first made the turn judgeable is kept; only a certain next state replaces it.
            waits = sa.true() if event.kind == NEXT_STATE else tasks.c.ready.is_(None)
            connection.execute(
                tasks.update().where(tasks.c.turn_id == event.turn_id, waits).values(ready=event.kind)
            )
            if event.kind in REACTIONS:
                self._promote(connection, event)
        else:
            connection.execute(tasks.delete().where(tasks.c.turn_id == event.turn_id))

    def _include(self, connection: sa.Connection, turn_id: str, task: UnjudgedTurn | None) -> None:
        """Restore the turn's verdict from before it was excluded; if it had none, it waits for one."""
        before = self._verdict(connection, turn_id)
        if before is None or before.source != EXCLUDE:
            return
        self._add_verdict(connection, turn_id, INCLUDED)
        if task is not None and self._verdict(connection, turn_id) is None:
            connection.execute(self._insert(tasks).on_conflict_do_nothing(), [asdict(task)])

    def _promote(self, connection: sa.Connection, event: StoredEvent) -> None:
        """A turn that the conversation continues belongs to it, even if it looked like a side request.

        A next state arrives once. An existing verdict was reached without it, so the turn is judged again,
        unless a user has rated or excluded it or a step has claimed it.
        """
        before = self._verdict(connection, event.turn_id)
        if before is None or not (_is_persons(before) or self._is_claimed(connection, event.turn_id)):
            row = {"turn_id": event.turn_id, "created_at": event.at, "ready": event.kind}
            connection.execute(self._insert(tasks).on_conflict_do_nothing(), [row])

    def _is_claimed(self, connection: sa.Connection, turn_id: str) -> bool:
        query = sa.select(_samples.c.step).where(_samples.c.turn_id == turn_id)
        return connection.execute(query).scalar() is not None

    def close_idle(self, before: float) -> int:
        """Make turns from before ``before`` without a next state judgeable, as the last of their session."""
        with database.writing(self.db) as connection:
            done = connection.execute(
                tasks.update()
                .where(tasks.c.ready.is_(None), tasks.c.created_at < before)
                .values(ready="idle")
            )
            return done.rowcount

    # --- judging -----------------------------------------------------------------------------

    def ready(self, limit: int, now: float) -> list[str]:
        """Turns to judge next, longest due first."""
        query = (
            sa.select(tasks.c.turn_id)
            .where(tasks.c.ready.is_not(None), tasks.c.next_try_at <= now)
            .order_by(tasks.c.next_try_at, tasks.c.created_at)
            .limit(limit)
        )
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def settle(self, turn_id: str, verdict: Verdict, *, unsure: bool = False) -> None:
        """Store the verdict and end the task; does nothing if a user's decision came first.

        ``unsure``: judged without a certain next state. If one arrived meanwhile, the turn is judged again.
        """
        with database.writing(self.db) as connection:
            row = connection.execute(sa.select(tasks.c.ready).where(tasks.c.turn_id == turn_id)).first()
            if unsure and row is not None and row.ready == NEXT_STATE:
                return
            if connection.execute(tasks.delete().where(tasks.c.turn_id == turn_id)).rowcount:
                self._add_verdict(connection, turn_id, verdict)

    def fail(self, turn_id: str, error: str, now: float) -> None:
        """The judge failed: the turn stays unjudged and is retried with exponential back-off."""
        with database.writing(self.db) as connection:
            row = connection.execute(sa.select(tasks.c.attempts).where(tasks.c.turn_id == turn_id)).first()
            if row is not None:
                wait_s = min(_MAX_BACK_OFF_S, 2.0 ** min(row.attempts, 10))
                connection.execute(
                    tasks.update()
                    .where(tasks.c.turn_id == turn_id)
                    .values(attempts=row.attempts + 1, next_try_at=now + wait_s, error=error[:500])
                )

    def _add_verdict(self, connection: sa.Connection, turn_id: str, verdict: Verdict) -> None:
        connection.execute(tasks.delete().where(tasks.c.turn_id == turn_id))
        before = self._verdict(connection, turn_id)
        number = next_number(connection, verdicts.c.seq, self.marks(connection))
        connection.execute(
            verdicts.insert().values(
                turn_id=turn_id, score=verdict.score, confidence=verdict.confidence, source=verdict.source,
                votes=to_json(verdict.votes), hints=to_json(verdict.hints), trainable=verdict.trainable,
                reason=verdict.reason, judged_at=time.time(), **number,
            )
        )  # fmt: skip
        if before is not None:
            self.add_mark(connection, _state_mark(before), -1)
        if (after := self._verdict(connection, turn_id)) is not None:
            self.add_mark(connection, _state_mark(after), 1)

    def drop_verdicts(self, connection: sa.Connection, turn_id: str) -> None:
        """Delete all verdicts on a turn."""
        if (before := self._verdict(connection, turn_id)) is not None:
            self.add_mark(connection, _state_mark(before), -1)
            self.set_mark(connection, LAST, newest(connection, verdicts.c.seq, self.marks(connection)))
        connection.execute(verdicts.delete().where(verdicts.c.turn_id == turn_id))

    # --- reading -----------------------------------------------------------------------------

    def verdict(self, turn_id: str) -> Verdict | None:
        """The verdict that counts: a secret, an exclusion, the user's newest rating, or the newest other."""
        with self.db.connect() as connection:
            return self._verdict(connection, turn_id)

    def _verdict(self, connection: sa.Connection, turn_id: str) -> Verdict | None:
        row = connection.execute(_standing(verdicts.c.turn_id == turn_id).limit(1)).first()
        if row is None:
            return None
        return Verdict(
            row.score, row.confidence, row.source, tuple(json.loads(row.votes)), tuple(json.loads(row.hints)),
            row.trainable, row.reason,
        )  # fmt: skip

    def scores(self, turn_ids: Sequence[str]) -> dict[str, int]:
        """The score of the verdict that counts, for each of these turns that has one."""
        found: dict[str, int] = {}
        with self.db.connect() as connection:
            for batch in database.batched(turn_ids):
                for row in connection.execute(_standing(verdicts.c.turn_id.in_(batch))):
                    found.setdefault(row.turn_id, row.score)
        return found

    def task(self, turn_id: str) -> Json | None:
        with self.db.connect() as connection:
            row = connection.execute(sa.select(tasks).where(tasks.c.turn_id == turn_id)).first()
        return None if row is None else dict(row._mapping)

    def unfinished(self, turn_ids: Sequence[str]) -> set[str]:
        """Those of the turns that are ready and wait for a verdict."""
        found: set[str] = set()
        with self.db.connect() as connection:
            for batch in database.batched(turn_ids):
                waits = sa.and_(tasks.c.turn_id.in_(batch), tasks.c.ready.is_not(None))
                found.update(connection.scalars(sa.select(tasks.c.turn_id).where(waits)))
        return found

    def counts(self, now: float) -> Counter[str]:
        """``judged``, ``excluded:<reason>``, ``queue``, ``due``, ``unjudged``; cost unaffected by history."""
        waits = tasks.c.ready.is_not(None)
        with self.db.connect() as connection:
            counts = Counter(
                {
                    name: int(value)
                    for name, value in self.marks(connection).items()
                    if name.startswith("excluded:") or name == "judged"
                }
            )
            for name, condition in (
                ("queue", waits),
                ("due", waits & (tasks.c.next_try_at <= now)),
                ("unjudged", tasks.c.attempts > 0),
            ):
                query = sa.select(sa.func.count()).select_from(tasks).where(condition)
                counts[name] = connection.execute(query).scalar_one()
        return counts

    def close(self) -> None:
        self.db.dispose()

    # --- marks: small facts that are updated in place ----------------------------------------

    def flush_requested_at(self, scope: Scope | None = None) -> float | None:
        """When a flush was last requested, for everybody or for a scope; None if it is done."""
        with self.db.connect() as connection:
            values, whose = self.marks(connection), _whose(scope)
        asked = values[f"flush_asked{whose}"]
        return asked if asked > values[f"flush_done{whose}"] else None

    def flushed(self, asked: float, scope: Scope | None = None) -> None:
        with database.writing(self.db) as connection:
            self.set_mark(connection, f"flush_done{_whose(scope)}", asked)

    def marks(self, connection: sa.Connection) -> Counter[str]:
        return Counter({row.name: row.value for row in connection.execute(sa.select(marks))})

    def set_mark(self, connection: sa.Connection, name: str, value: float) -> None:
        row: Row = {"name": name, "value": value}
        connection.execute(
            self._insert(marks)
            .values(row)
            .on_conflict_do_update(index_elements=["name"], set_={"value": value})
        )

    def add_mark(self, connection: sa.Connection, name: str, number: int) -> None:
        self.set_mark(connection, name, self.marks(connection)[name] + number)


def _standing(turns: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Verdicts on these turns; each turn's verdict that counts comes first."""
    source, back = verdicts.c.source, verdicts.alias("back")
    taken_back = sa.select(sa.func.coalesce(sa.func.max(back.c.seq), 0)).where(
        back.c.turn_id == verdicts.c.turn_id, back.c.source == INCLUDE
    )
    stands = sa.or_(source != EXCLUDE, verdicts.c.seq > taken_back.scalar_subquery())
    by_user = sa.case((source == SECRET, 0), (source == EXCLUDE, 1), (source == FEEDBACK, 2), else_=3)
    return (
        sa.select(verdicts).where(turns, source != INCLUDE, stands).order_by(by_user, verdicts.c.seq.desc())
    )


def _whose(scope: Scope | None) -> str:
    return "" if scope is None else f":{scope}"


def _is_persons(verdict: Verdict) -> bool:
    return verdict.source in (FEEDBACK, EXCLUDE, SECRET)


def _state_mark(verdict: Verdict) -> str:
    return "judged" if verdict.trainable else f"excluded:{verdict.reason}"
