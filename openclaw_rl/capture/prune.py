"""Retention: deletes whole sessions, oldest first, then content that nothing refers to any more.

Safe next to a running server, whose writer caches which content it has stored. A prune starts a
new *generation*; the writer notices inside its next transaction, drops its cache, and stamps
whatever its turns need with the new generation. Only content that no turn reached when the
generation began, and that carries no newer stamp, is deleted. All deletions are small transactions.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import database, reach, schema
from openclaw_rl.capture.background import erase_ended
from openclaw_rl.capture.conversations import erase_from_conversations, erase_unused
from openclaw_rl.capture.database import batched, read_snapshot
from openclaw_rl.capture.forget import forget_words
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, lock_counters
from openclaw_rl.capture.unjudged import count_left_out

#: Sessions, content rows and free pages per transaction.
_SESSIONS, _ROWS, _PAGES = 10, 500, 500
#: A session counts as open for this long after its last turn, whatever the limits say.
OPEN_S = 24 * 3600.0
#: Returns those of the given session ids that must be kept.
KeepRule = Callable[[ServeLedger, Sequence[str]], Collection[str]]


@dataclass(slots=True)
class PruneReport:
    sessions: int = 0
    turns: int = 0
    content_rows: int = 0
    bytes: int = 0
    """Size of the removed rows' values, without indexes and page overhead."""
    bytes_left: int = 0
    file_bytes_freed: int = 0
    """Returned to the file system; always 0 on PostgreSQL, which reuses the space itself."""
    logs_empty: bool = True
    """False if readers were active throughout, so that SQLite's log still holds old pages."""


def prune(
    ledger: ServeLedger,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    keep: Sequence[KeepRule] = (),
    learn_ledger: LearnLedger | None = None,
) -> PruneReport:
    """Delete sessions idle for ``older_than_s``, and the oldest ones until ``max_bytes`` are left.

    Their text in ``learn_ledger`` is deleted first, so that none is left behind if this is interrupted.
    """
    if older_than_s is None and max_bytes is None:
        raise ValueError("nothing to prune by: give an age (--older-than), a size (--max-gb) or both")
    now = time.time()
    closed = _closed_sessions(ledger, now - OPEN_S)
    oldest = now - older_than_s if older_than_s is not None else float("-inf")
    if max_bytes is None:  # the rules need several queries for each session: ask only about those that may go
        closed = [session for session in closed if session.last_turn_at < oldest]
    kept = {session_id for rule in keep for session_id in rule(ledger, [s.id for s in closed])}
    closed = [session for session in closed if session.id not in kept]
    num_old = sum(session.last_turn_at < oldest for session in closed)
    plan = _plan(ledger, [session.seq for session in closed], num_old, max_bytes)
    if dry_run:
        return plan
    report = PruneReport()
    for batch in batched(closed[: plan.sessions], _SESSIONS):
        if learn_ledger is not None:
            ids = [turn["id"] for session in batch for turn in ledger.turn_summaries(session.id)]
            forget_words(learn_ledger, ids)
        _remove_sessions(ledger, [session.seq for session in batch], now - OPEN_S, report)
    with _brief(ledger) as connection:
        erase_unused(connection, min(oldest, now - OPEN_S))
        erase_ended(connection, min(oldest, now - OPEN_S))
    sweep(ledger, report)
    report.bytes_left = plan.bytes_left + plan.bytes - report.bytes
    report.file_bytes_freed = give_back(ledger.db)
    if learn_ledger is not None:
        report.file_bytes_freed += give_back(learn_ledger.db)
    engines = [ledger.db] if learn_ledger is None else [ledger.db, learn_ledger.db]
    # Old pages stay readable in the log until it is truncated.
    report.logs_empty = all([database.empty_log(engine) for engine in engines])
    return report


def keep_unfinished(learn_ledger: LearnLedger, policy_ledger: PolicyLedger | None = None) -> KeepRule:
    """Keep sessions with a turn that waits for the judge or for a step, whatever their age."""

    def rule(ledger: ServeLedger, session_ids: Sequence[str]) -> set[str]:
        kept = set()
        for session_id in session_ids:
            turn_ids = [summary["id"] for summary in ledger.turn_summaries(session_id)]
            if learn_ledger.unfinished(turn_ids) or (policy_ledger and policy_ledger.waiting_turns(turn_ids)):
                kept.add(session_id)
        return kept

    return rule


# --- what to remove --------------------------------------------------------------------------


def _closed_sessions(ledger: ServeLedger, before: float) -> Sequence[Any]:
    """Sessions without a turn since ``before``, longest idle first: seq, id, last_turn_at."""
    with read_snapshot(ledger.db) as connection:
        return connection.execute(_idle(before)).all()


def _idle(before: float) -> sa.Select[Any]:
    turns, sessions = schema.turns, schema.sessions
    last = sa.func.max(turns.c.created_at).label("last_turn_at")
    return (
        sa.select(sessions.c.seq, sessions.c.id, last)
        .join(turns, turns.c.session == sessions.c.seq)
        .group_by(sessions.c.seq, sessions.c.id)
        .having(last < before)
        .order_by(last, sessions.c.seq)
    )


def _plan(ledger: ServeLedger, closed: Sequence[int], number: int, max_bytes: int | None) -> PruneReport:
    """What deleting the first ``number`` sessions, or more if the size requires it, would free."""
    with read_snapshot(ledger.db) as connection:
        everything = [sa.select(*_totals(table)) for table in (schema.turns, *reach.NEEDED)]
        total = sum(_read_totals(connection, query)[1] for query in everything)
        while True:
            plan = _measure(connection, closed[:number])
            plan.bytes_left = total - plan.bytes
            if max_bytes is None or plan.bytes_left <= max_bytes or number == len(closed):
                return plan
            bytes_per_session = max(1, plan.bytes // number if number else total // len(closed))
            number = min(len(closed), number + 1 + (plan.bytes_left - max_bytes) // bytes_per_session)


def _measure(connection: sa.Connection, sessions: Sequence[int]) -> PruneReport:
    reach.mark(connection, sessions)
    report = PruneReport(sessions=len(sessions))
    turns = sa.select(*_totals(schema.turns)).join(
        reach.left_out, reach.left_out.c.session == schema.turns.c.session
    )
    report.turns, report.bytes = _read_totals(connection, turns)
    for table in reach.NEEDED:
        rows, size = _read_totals(connection, reach.unneeded(table, *_totals(table)))
        report.content_rows += rows
        report.bytes += size
    return report


def _size(table: sa.Table) -> sa.ColumnElement[int]:
    """Bytes of a row's values."""
    sizes: sa.ColumnElement[int] = sa.literal(0)
    for column in table.c:
        varies = isinstance(column.type, sa.LargeBinary | sa.Text)
        sizes = sizes + (sa.func.coalesce(sa.func.length(column), 0) if varies else sa.literal(8))
    return sizes


def _totals(table: sa.Table) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
    return sa.func.count(), sa.func.coalesce(sa.func.sum(_size(table)), 0)


def _read_totals(connection: sa.Connection, query: sa.Select[*tuple[Any, ...]]) -> tuple[int, int]:
    rows, size = connection.execute(query).one()
    return int(rows), int(size)


# --- removing it -----------------------------------------------------------------------------


@contextmanager
def _brief(ledger: ServeLedger) -> Iterator[sa.Connection]:
    """A small write, followed by a pause of the same length, so that the server can write in between."""
    began = time.monotonic()
    with ledger.writing() as connection:
        yield connection
    time.sleep(max(0.002, time.monotonic() - began))


def _remove_sessions(
    ledger: ServeLedger, sessions: Sequence[int], before: float, report: PruneReport
) -> None:
    turns, keys = schema.turns, schema.turn_keys
    with _brief(ledger) as connection:
        counters = lock_counters(connection)
        # Some may have got a turn since they were chosen.
        idle = [
            row.seq for row in connection.execute(_idle(before).where(schema.sessions.c.seq.in_(sessions)))
        ]
        belonging = turns.c.session.in_(idle)
        columns = (
            turns.c.seq,
            turns.c.id,
            turns.c.lookup_keys,
            turns.c.finish_reason,
            _size(turns).label("size"),
        )
        rows = connection.execute(sa.select(*columns).where(belonging)).all()
        left_out = count_left_out(connection, belonging)
        found_by = [
            {"a_key": bytes.fromhex(key), "a_turn": row.seq}
            for row in rows
            for key in json.loads(row.lookup_keys).values()
        ]
        if found_by:
            match = sa.and_(keys.c.key == sa.bindparam("a_key"), keys.c.turn == sa.bindparam("a_turn"))
            connection.execute(keys.delete().where(match), found_by)
        for batch in batched(row.seq for row in rows):
            for later in (schema.deliveries, schema.events):
                connection.execute(later.delete().where(later.c.turn.in_(batch)))
        session_ids = sa.select(schema.sessions.c.id).where(schema.sessions.c.seq.in_(idle))
        erase_from_conversations(connection, [row.id for row in rows], list(connection.scalars(session_ids)))
        connection.execute(turns.delete().where(belonging))
        connection.execute(schema.sessions.delete().where(schema.sessions.c.seq.in_(idle)))
        gone = Counter(f"finish_{row.finish_reason}" for row in rows)
        gone.update({**left_out, "sessions": len(idle), "turns": len(rows)})
        ledger.set_counters(connection, {name: counters[name] - number for name, number in gone.items()})
    report.sessions += len(idle)
    report.turns += len(rows)
    report.bytes += sum(row.size for row in rows)


def sweep(ledger: ServeLedger, report: PruneReport) -> None:
    """Delete content that nothing needs. Content of new turns carries the new generation from now on."""
    with _brief(ledger) as connection:
        generation = lock_counters(connection)["generation"] + 1
        ledger.set_counters(connection, {"generation": generation})
    with read_snapshot(ledger.db) as connection:
        reach.mark(connection)
        # Hashes concatenated, to take only 16 bytes each.
        doomed = {table: b"".join(connection.scalars(_outdated(table, generation))) for table in reach.NEEDED}
    for table, hashes in doomed.items():
        for batch in batched((hashes[i : i + 16] for i in range(0, len(hashes), 16)), _ROWS):
            _remove_rows(ledger, table, batch, generation, report)


def _outdated(table: sa.Table, generation: int) -> sa.Select[Any]:
    return reach.unneeded(table, table.c.hash).where(table.c.epoch < generation)


def _remove_rows(
    ledger: ServeLedger, table: sa.Table, hashes: Sequence[bytes], generation: int, report: PruneReport
) -> None:
    # Check again: a turn written since the marking may need some of them.
    still = sa.and_(table.c.hash.in_(hashes), table.c.epoch < generation)
    with _brief(ledger) as connection:
        lock_counters(connection)
        rows, size = _read_totals(connection, sa.select(*_totals(table)).where(still))
        connection.execute(table.delete().where(still))
    report.content_rows += rows
    report.bytes += size


def give_back(engine: sa.Engine) -> int:
    """Shrink SQLite's file step by step; returns the bytes freed."""
    if engine.dialect.name != "sqlite":
        return 0
    before = database.file_pages(engine)
    while database.release_pages(engine, _PAGES):
        database.checkpoint(engine)
        time.sleep(0.01)
    database.checkpoint(engine)
    return (before - database.file_pages(engine)) * database.PAGE_BYTES
