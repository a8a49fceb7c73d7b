"""The durable record of every turn, on SQLite or PostgreSQL with the same statements.

When ``append`` returns, its rows survive a power cut. Readers never block the writer. The ledger
only stores and finds turns; the caller decides which session a turn belongs to.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.content import ContentRows, KnownHashes, Row
from openclaw_rl.capture.database import batched, sqlite_url
from openclaw_rl.capture.events import StoredEvent, TurnEvent, load_events, store_events
from openclaw_rl.capture.integrity import find_damage
from openclaw_rl.capture.migrate import SERVE
from openclaw_rl.capture.rows import decode_turns, encode_turn
from openclaw_rl.capture.unjudged import new_left_out
from openclaw_rl.types import Json, TurnRecord

__all__ = ["Delivery", "Entry", "ServeLedger", "sqlite_url"]

#: Sessions read per page.
_PAGE = 20
_LIGHT_COLUMNS = (
    "id", "user", "kind", "continues", "policy_version", "prompt_tokens", "completion_tokens",
    "finish_reason", "created_at", "session", *schema.FACTS,
)  # fmt: skip


# Statements of every request, built once.
_LOCK = sa.select(schema.counters.c.value).where(schema.counters.c.name == "generation").with_for_update()
_FIND_TURNS, _FIND_SESSIONS = (
    sa.select(table.c.id, table.c.seq).where(table.c.id.in_(sa.bindparam("ids", expanding=True)))
    for table in (schema.turns, schema.sessions)
)
_FIND_BY_KEYS = (
    sa.select(schema.turn_keys.c.key, schema.turns.c.id, schema.sessions.c.id)
    .join(schema.turns, schema.turns.c.seq == schema.turn_keys.c.turn)
    .join(schema.sessions, schema.sessions.c.seq == schema.turns.c.session)
    .where(schema.turn_keys.c.key.in_(sa.bindparam("keys", expanding=True)))
)


@dataclass(frozen=True, slots=True)
class Delivery:
    turn_id: str
    delivered: bool
    at: float


Entry = TurnRecord | Delivery | TurnEvent


class ServeLedger:
    """One ledger by URL. Methods are synchronous and thread-safe; call the writing ones in a thread."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.db = database.connect(self.url)
        try:
            with database.creating(self.db) as connection:
                SERVE.run(connection)
        except sa.exc.DBAPIError as error:
            self.db.dispose()
            shown = self.url.render_as_string(hide_password=True)
            raise ValueError(f"the ledger {shown} cannot be opened: {error.orig}") from None
        except BaseException:
            self.db.dispose()
            raise
        self._statements = _Statements(self.db.dialect.name)
        self._seen = KnownHashes()
        self._appending = threading.Lock()

    # --- writing -----------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Store all entries in one transaction. A turn that is already stored stays unchanged.

        A ValueError means that an entry is invalid; any other error has another cause.
        """
        turns: dict[str, TurnRecord] = {}
        deliveries: dict[str, Delivery] = {}
        events: list[TurnEvent] = []
        for entry in entries:
            if isinstance(entry, TurnRecord):
                turns.setdefault(entry.id, entry)
            elif isinstance(entry, TurnEvent):
                events.append(entry)
            else:
                deliveries.setdefault(entry.turn_id, entry)
        try:
            with self._appending:
                self._append(list(turns.values()), list(deliveries.values()), events)
        except (TypeError, OverflowError, RecursionError, sa.exc.DataError, sa.exc.IntegrityError) as error:
            raise ValueError(f"an entry cannot be stored: {type(error).__name__}") from error

    def _append(
        self, turns: Sequence[TurnRecord], deliveries: Sequence[Delivery], events: Sequence[TurnEvent]
    ) -> None:
        # Encoded before the lock is taken, and again if a prune outdated `_seen`.
        content, rows = _encode(turns, self._seen)
        with self.writing() as connection:
            counters = lock_counters(connection)
            if counters["generation"] != self._seen.generation:
                self._seen = KnownHashes(counters["generation"])
                content, rows = _encode(turns, self._seen)
            for table, new_rows in content.tables():
                # In index order: touches fewer pages, and fills them better.
                _add(connection, self._statements.content[table], [new_rows[key] for key in sorted(new_rows)])
            named = [delivery.turn_id for delivery in deliveries] + [e.turn_id for e in events if e.turn_id]
            seqs = _seqs(connection, _FIND_TURNS, [*rows, *named])
            new = [turn for turn in turns if turn.id not in seqs]
            if new:
                seqs |= self._store_turns(connection, new, rows, counters)
            told = [d for d in deliveries if d.turn_id in seqs]
            rows_told = [{"turn": seqs[d.turn_id], "delivered": d.delivered, "at": d.at} for d in told]
            _add(connection, self._statements.delivery, rows_told)
            if store_events(connection, events, seqs, counters):
                self.set_counters(connection, counters)
        content.mark_stored()

    def _store_turns(
        self,
        connection: sa.Connection,
        turns: Sequence[TurnRecord],
        rows: Mapping[str, Row],
        counters: Counter[str],
    ) -> dict[str, int]:
        """Number, store, index and count new turns; returns turn id -> seq."""
        sessions = self._open_sessions(connection, turns, counters)
        seqs = {turn.id: seq for seq, turn in enumerate(turns, counters["last_turn"] + 1)}
        numbered = [
            {**rows[turn.id], "seq": seqs[turn.id], "session": sessions[turn.session_id]} for turn in turns
        ]
        _add(connection, schema.turns.insert(), numbered)
        keys = {bytes.fromhex(key): seqs[turn.id] for turn in turns for key in turn.keys.values()}
        _add(connection, self._statements.key, [{"key": key, "turn": seq} for key, seq in keys.items()])
        counters.update(f"finish_{turn.finish_reason}" for turn in turns)
        counters.update(new_left_out(turns), turns=len(turns), last_turn=len(turns))
        self.set_counters(connection, counters)
        return seqs

    def _open_sessions(
        self, connection: sa.Connection, turns: Sequence[TurnRecord], counters: Counter[str]
    ) -> dict[str, int]:
        """Open sessions that are new; returns session id -> seq for all."""
        table = schema.sessions
        first: dict[str, TurnRecord] = {}
        for turn in turns:
            first.setdefault(turn.session_id, turn)
        known = _seqs(connection, _FIND_SESSIONS, first)
        opened = [turn for session_id, turn in first.items() if session_id not in known]
        rows: list[Row] = [
            {"seq": seq, "id": turn.session_id, "user": turn.user, "opened_at": turn.created_at}
            for seq, turn in enumerate(opened, counters["last_session"] + 1)
        ]
        _add(connection, table.insert(), rows)
        counters.update(sessions=len(rows), last_session=len(rows))
        return known | {row["id"]: row["seq"] for row in rows}

    def set_counters(self, connection: sa.Connection, values: Mapping[str, int]) -> None:
        rows = [{"name": name, "value": value} for name, value in values.items()]
        _add(connection, self._statements.counter, rows)

    def writing(self) -> AbstractContextManager[sa.Connection]:
        return database.writing(self.db)

    def checkpoint(self) -> int:
        """Move SQLite's log into the main file without blocking readers or writers; see ``database``."""
        return database.checkpoint(self.db)

    # --- reading -----------------------------------------------------------------------------

    def find_by_keys(self, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The newest turn under each key: key -> (turn id, session id). One indexed query."""
        wanted = {"keys": [bytes.fromhex(key) for key in keys]}
        with self.db.connect() as connection:
            return {
                key.hex(): (turn_id, session_id)
                for key, turn_id, session_id in connection.execute(_FIND_BY_KEYS, wanted)
            }

    def list_sessions(
        self,
        limit: int,
        after: str | None = None,
        user: str | None = None,
        only: Sequence[str] | None = None,
    ) -> list[Json]:
        """Newest first; ``after`` is the id of the previous page's last session.

        ``only``: just these sessions, in this order.
        """
        table, turns = schema.sessions, schema.turns
        count = (
            sa.select(sa.func.count())
            .where(turns.c.session == table.c.seq)
            .correlate(table)
            .scalar_subquery()
        )
        last = (
            sa.select(turns.c.id)
            .where(turns.c.session == table.c.seq)
            .order_by(turns.c.seq.desc())
            .limit(1)
            .correlate(table)
            .scalar_subquery()
        )
        query = sa.select(
            table.c.id, table.c.user, table.c.opened_at, count.label("num_turns"), last.label("last_turn_id")
        )
        if user is not None:
            query = query.where(table.c.user == user)
        if after is not None:
            marker = sa.select(table.c.seq).where(table.c.id == after).scalar_subquery()
            query = query.where(table.c.seq < marker)
        if only is not None:
            query = query.where(table.c.id.in_(only))
        query = query.order_by(table.c.seq.desc()).limit(limit)
        with self.db.connect() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]
        return rows if only is None else sorted(rows, key=lambda row: only.index(row["id"]))

    def session(self, session_id: str) -> Json | None:
        table = schema.sessions
        query = sa.select(table.c.id, table.c.user, table.c.opened_at).where(table.c.id == session_id)
        with self.db.connect() as connection:
            row = connection.execute(query).first()
        return dict(row._mapping) if row else None

    def turn_summary(self, turn_id: str) -> Json | None:
        """The light columns of a turn, and whether it was delivered."""
        return next(iter(self._summaries(schema.turns.c.id == turn_id)), None)

    def turn_summaries(self, session_id: str) -> list[Json]:
        """The same for all turns of a session, in order."""
        return self._summaries(schema.sessions.c.id == session_id)

    def _summaries(self, condition: sa.ColumnElement[bool]) -> list[Json]:
        turns, deliveries = schema.turns, schema.deliveries
        columns = (turns.c[name] for name in _LIGHT_COLUMNS)
        query = (
            sa.select(*columns, schema.sessions.c.id.label("session_id"), deliveries.c.delivered)
            .join(schema.sessions, schema.sessions.c.seq == turns.c.session)
            .outerjoin(deliveries, deliveries.c.turn == turns.c.seq)
            .where(condition)
            .order_by(turns.c.seq)
        )
        with self.db.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def turns_after(self, seq: int, limit: int) -> list[Json]:
        """Light columns of the turns stored after number ``seq``, in order."""
        turns = schema.turns
        names = ("seq", "id", "session", "kind", "finish_reason", "created_at", "secrets")
        columns = (turns.c[name] for name in names)
        query = sa.select(*columns).where(turns.c.seq > seq).order_by(turns.c.seq).limit(limit)
        with self.db.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def events_after(self, seq: int, limit: int) -> list[StoredEvent]:
        """Events stored after number ``seq``, in order."""
        with self.db.connect() as connection:
            return load_events(connection, schema.events.c.seq > seq, limit)

    def events_of(self, turn_id: str) -> list[StoredEvent]:
        """All events about one turn, in order."""
        with self.db.connect() as connection:
            return load_events(connection, schema.turns.c.id == turn_id)

    def counts(self) -> Counter[str]:
        """Numbers of sessions, turns, and turns by finish reason. Constant cost."""
        with self.db.connect() as connection:
            return schema.read_counters(connection)

    def load_turn(self, turn_id: str) -> TurnRecord | None:
        """A turn exactly as it was appended."""
        with self.db.connect() as connection:
            rows = connection.execute(_whole_turns().where(schema.turns.c.id == turn_id)).all()
            return next(iter(decode_turns(connection, rows)), None)

    def iter_sessions(self) -> Iterator[tuple[list[TurnRecord], dict[str, Delivery]]]:
        """Session by session, oldest first: its turns in order, and their deliveries.

        Holds a few sessions in memory at a time, and no transaction between pages.
        """
        last = 0
        while True:
            with self.db.connect() as connection:
                page = _page_of_sessions(connection, last)
                if not page:
                    return
                rows = connection.execute(
                    _whole_turns()
                    .where(schema.turns.c.session.in_(page))
                    .order_by(schema.turns.c.session, schema.turns.c.seq)
                ).all()
                turns = decode_turns(connection, rows)
                deliveries = _load_deliveries(connection, [row.seq for row in rows])
            last = page[-1]
            by_session: dict[int, list[TurnRecord]] = {}
            for row, turn in zip(rows, turns, strict=True):
                by_session.setdefault(row.session, []).append(turn)
            yield from ((group, deliveries) for group in by_session.values())

    def check_integrity(self) -> list[str]:
        """Problems found, one line each; empty if there are none. Reads everything."""
        return find_damage(self.db)

    def close(self) -> None:
        self.db.dispose()


class _Statements:
    """Inserts that handle existing rows; built once, for one kind of database."""

    def __init__(self, backend: str) -> None:
        insert = postgresql.insert if backend == "postgresql" else sqlite.insert
        #: An existing row only gets the newest epoch, which protects it from prunes.
        self.content = {
            table: _or_update(insert(table), "epoch", only_higher=True)
            for table in (schema.bodies, schema.nodes, schema.blocks)
        }
        #: The newest turn under a key replaces the previous one.
        self.key = _or_update(insert(schema.turn_keys), "turn")
        self.counter = _or_update(insert(schema.counters), "value")
        self.delivery = insert(schema.deliveries).on_conflict_do_nothing()


def _or_update(insert: Any, column: str, only_higher: bool = False) -> Any:
    table, value = insert.table, insert.excluded[column]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column: value},
        where=table.c[column] < value if only_higher else None,
    )


def lock_counters(connection: sa.Connection) -> Counter[str]:
    """Wait until no other transaction is writing, then read all counters."""
    connection.execute(_LOCK)
    return schema.read_counters(connection)


def _encode(turns: Sequence[TurnRecord], seen: KnownHashes) -> tuple[ContentRows, dict[str, Row]]:
    content = ContentRows(seen)
    return content, {turn.id: encode_turn(turn, content) for turn in turns}


def _add(connection: sa.Connection, insert: Any, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(insert, rows)


def _seqs(connection: sa.Connection, query: sa.Select[Any], ids: Iterable[str]) -> dict[str, int]:
    return {key: seq for batch in batched(ids) for key, seq in connection.execute(query, {"ids": batch})}


def _whole_turns() -> sa.Select[Any]:
    turns, sessions = schema.turns, schema.sessions
    return sa.select(turns, sessions.c.id.label("session_id")).join(
        sessions, sessions.c.seq == turns.c.session
    )


def _page_of_sessions(connection: sa.Connection, after: int) -> list[int]:
    table = schema.sessions
    query = sa.select(table.c.seq).where(table.c.seq > after).order_by(table.c.seq).limit(_PAGE)
    return list(connection.scalars(query))


def _load_deliveries(connection: sa.Connection, seqs: Sequence[int]) -> dict[str, Delivery]:
    turns, table = schema.turns, schema.deliveries
    return {
        row.id: Delivery(row.id, row.delivered, row.at)
        for batch in batched(seqs)
        for row in connection.execute(
            sa.select(turns.c.id, table.c.delivered, table.c.at)
            .join(turns, turns.c.seq == table.c.turn)
            .where(table.c.turn.in_(batch))
        )
    }
