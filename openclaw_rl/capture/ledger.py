"""The durable record of every turn, on SQLite or PostgreSQL through one set of statements.

When ``append`` returns, its rows survive a power cut. Readers never block the writer. The
ledger only stores and finds; which session a turn belongs to is decided before it arrives here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from openclaw_rl.capture import schema
from openclaw_rl.capture.content import ContentRows, Row, Seen, pack_ids, to_json, unpack_ids
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord


@dataclass(frozen=True, slots=True)
class Delivery:
    turn_id: str
    delivered: bool
    at: float


Entry = TurnRecord | Delivery


class Ledger:
    """One ledger by URL. Methods are synchronous and thread-safe; use a thread for writes."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self._insert: Any = (
            postgresql.insert if self.url.get_backend_name() == "postgresql" else sqlite.insert
        )
        self._db = _connect(self.url)
        schema.migrate(self._db)
        self._seen = Seen()

    # --- writing -----------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Store all entries in one transaction. A turn that is already there stays as it is."""
        content = ContentRows(self._seen)
        turns = [entry for entry in entries if isinstance(entry, TurnRecord)]
        rows = [_turn_row(turn, content) for turn in turns]
        keys = [{"key": bytes.fromhex(k), "turn_id": t.id} for t in turns for k in t.keys.values()]
        opened = {t.session_id: t for t in reversed(turns)}
        with self._db.begin() as connection:
            self._add(connection, schema.bodies, list(content.bodies.values()))
            self._add(connection, schema.nodes, list(content.nodes.values()))
            self._add(connection, schema.blocks, list(content.blocks.values()))
            self._add(
                connection,
                schema.sessions,
                [{"id": t.session_id, "user": t.user, "opened_at": t.created_at} for t in opened.values()],
            )
            self._add(connection, schema.turns, rows)
            self._add(connection, schema.turn_keys, keys)
            deliveries = [asdict(entry) for entry in entries if isinstance(entry, Delivery)]
            self._add(connection, schema.deliveries, deliveries)
        content.mark_stored()

    def _add(self, connection: sa.Connection, table: sa.Table, rows: list[Row]) -> None:
        if rows:
            connection.execute(self._insert(table).on_conflict_do_nothing(), rows)

    def checkpoint(self) -> None:
        """Move SQLite's log into the main file without blocking writers."""
        if self.url.get_backend_name() == "sqlite":
            connection = self._db.raw_connection()
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                connection.close()

    # --- reading -----------------------------------------------------------------------------

    def find_by_keys(self, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Newest turn under each key: key -> (turn id, session id). One indexed query."""
        table, turns = schema.turn_keys, schema.turns
        query = (
            sa.select(table.c.key, turns.c.id, turns.c.session_id)
            .join(turns, turns.c.id == table.c.turn_id)
            .where(table.c.key.in_([bytes.fromhex(key) for key in keys]))
            .order_by(turns.c.seq)
        )
        with self._db.connect() as connection:
            return {row.key.hex(): (row.id, row.session_id) for row in connection.execute(query)}

    def has_session(self, session_id: str) -> bool:
        query = sa.select(schema.sessions.c.seq).where(schema.sessions.c.id == session_id)
        with self._db.connect() as connection:
            return connection.execute(query).first() is not None

    def list_sessions(self, limit: int, after: str | None = None) -> list[Json]:
        """Newest first; ``after`` is the id of the last session of the page before."""
        table, turns = schema.sessions, schema.turns
        count = (
            sa.select(sa.func.count())
            .where(turns.c.session_id == table.c.id)
            .correlate(table)
            .scalar_subquery()
        )
        query = sa.select(table.c.id, table.c.user, table.c.opened_at, count.label("num_turns"))
        if after is not None:
            marker = sa.select(table.c.seq).where(table.c.id == after).scalar_subquery()
            query = query.where(table.c.seq < marker)
        query = query.order_by(table.c.seq.desc()).limit(limit)
        with self._db.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def session(self, session_id: str) -> Json | None:
        query = sa.select(schema.sessions).where(schema.sessions.c.id == session_id)
        with self._db.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else dict(row._mapping)

    def turn_ids(self, session_id: str) -> list[str]:
        turns = schema.turns
        query = sa.select(turns.c.id).where(turns.c.session_id == session_id).order_by(turns.c.seq)
        with self._db.connect() as connection:
            return list(connection.scalars(query))

    def turn_summary(self, turn_id: str) -> Json | None:
        """The light columns of a turn, and whether it was delivered."""
        turns, deliveries = schema.turns, schema.deliveries
        names = (
            "id session_id user kind continues policy_version prompt_tokens completion_tokens "
            "finish_reason created_at"
        ).split()
        query = (
            sa.select(*(turns.c[name] for name in names), deliveries.c.delivered)
            .outerjoin(deliveries, deliveries.c.turn_id == turns.c.id)
            .where(turns.c.id == turn_id)
        )
        with self._db.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else dict(row._mapping)

    def counts(self) -> dict[str, int]:
        """How many sessions and turns there are, and turns by finish reason."""
        turns = schema.turns
        by_reason = sa.select(turns.c.finish_reason, sa.func.count()).group_by(turns.c.finish_reason)
        with self._db.connect() as connection:
            counts = {f"finish_{reason}": number for reason, number in connection.execute(by_reason)}
            counts["sessions"] = (
                connection.scalar(sa.select(sa.func.count()).select_from(schema.sessions)) or 0
            )
        counts["turns"] = sum(n for name, n in counts.items() if name.startswith("finish_"))
        return counts

    def load_turn(self, turn_id: str) -> TurnRecord | None:
        """A turn exactly as it was appended."""
        with self._db.connect() as connection:
            row = connection.execute(sa.select(schema.turns).where(schema.turns.c.id == turn_id)).first()
            return None if row is None else _read_turn(connection, row)

    def iter_turns(self) -> Iterator[TurnRecord]:
        """All turns, session by session, in order."""
        turns = schema.turns
        order = sa.select(turns.c.id).order_by(turns.c.session_id, turns.c.seq)
        with self._db.connect() as connection:
            ids = list(connection.scalars(order))
        for turn_id in ids:
            turn = self.load_turn(turn_id)
            assert turn is not None
            yield turn

    def check_integrity(self) -> list[str]:
        """Problems found by the database itself and dangling references; empty when sound."""
        problems: list[str] = []
        with self._db.connect() as connection:
            if self.url.get_backend_name() == "sqlite":
                result = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                problems += [line for line in result if line != "ok"]
            for table, column, target in (
                (schema.nodes, "parent", schema.nodes), (schema.nodes, "body", schema.bodies),
                (schema.blocks, "parent", schema.blocks), (schema.turns, "node", schema.nodes),
                (schema.turns, "reply", schema.bodies), (schema.turns, "tools", schema.bodies),
                (schema.turns, "block", schema.blocks),
            ):  # fmt: skip
                known = sa.select(target.c.hash)
                dangling = sa.select(sa.func.count()).where(
                    table.c[column].is_not(None), table.c[column].not_in(known)
                )
                if number := connection.scalar(dangling):
                    problems.append(f"{number} rows of {table.name} lack their {column}")
        return problems

    def close(self) -> None:
        self._db.dispose()


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def _connect(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
        options = {"connect_timeout": 5, "options": "-c statement_timeout=10000"}
        return sa.create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=options)
    if url.get_backend_name() != "sqlite":
        raise ValueError(f"unknown ledger {url.get_backend_name()!r}; use sqlite:///PATH or postgresql://…")
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    # hide_parameters: an error message must never carry somebody's prompt into a log.
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": 10})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        # Checkpoints run in the background (`checkpoint`), not inside somebody's commit.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-16000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # The driver's own BEGIN leaves schema changes outside the transaction.
        connection.exec_driver_sql("BEGIN")

    return engine


def _turn_row(turn: TurnRecord, content: ContentRows) -> Row:
    block, tail = content.add_prompt(turn.prompt_ids)
    tokens = turn.tokens
    width = {len(token.top_ids) for token in tokens} | {len(token.top_logprobs) for token in tokens}
    if len(width) > 1:
        raise ValueError(f"turn {turn.id}: tokens carry top-k lists of different lengths {sorted(width)}")
    return {
        "id": turn.id, "session_id": turn.session_id, "user": turn.user, "dialect": turn.dialect,
        "kind": turn.kind, "continues": turn.continues,
        "node": content.add_messages(turn.messages),
        "tools": content.add_body(turn.tools) if turn.tools is not None else None,
        "params": to_json(turn.params),
        "reply": content.add_body(turn.reply),
        "block": block, "prompt_tail": tail,
        "prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(tokens),
        "ids": pack_ids([token.id for token in tokens]),
        "logprobs": _pack_floats([token.logprob for token in tokens]),
        "sampled_logprobs": _pack_floats([token.sampled_logprob for token in tokens]),
        "top_ids": pack_ids([i for token in tokens for i in token.top_ids]),
        "top_logprobs": _pack_floats([value for token in tokens for value in token.top_logprobs]),
        "forced": bytes(token.forced for token in tokens),
        "sampling": to_json(asdict(turn.sampling)),
        "policy_version": turn.policy_version, "finish_reason": turn.finish_reason,
        "created_at": turn.created_at, "timings": to_json(turn.timings),
    }  # fmt: skip


def _read_turn(connection: sa.Connection, row: Any) -> TurnRecord:
    def body(key: bytes) -> Any:
        query = sa.select(schema.bodies.c.body).where(schema.bodies.c.hash == key)
        return json.loads(connection.execute(query).scalar_one())

    ids = unpack_ids(b"".join(_chain(connection, schema.blocks, "ids", row.block)) + row.prompt_tail)
    messages = [body(key) for key in _chain(connection, schema.nodes, "body", row.node)]
    keys = sa.select(schema.turn_keys.c.key).where(schema.turn_keys.c.turn_id == row.id)
    return TurnRecord(
        id=row.id, session_id=row.session_id, user=row.user, dialect=row.dialect, kind=row.kind,
        messages=messages, tools=body(row.tools) if row.tools is not None else None,
        params=json.loads(row.params), reply=body(row.reply), prompt_ids=ids, tokens=_read_tokens(row),
        sampling=SamplingParams(**json.loads(row.sampling)), policy_version=row.policy_version,
        finish_reason=row.finish_reason, created_at=row.created_at, timings=json.loads(row.timings),
        continues=row.continues,
        keys={str(i): key.hex() for i, key in enumerate(connection.scalars(keys))},
    )  # fmt: skip


def _chain(connection: sa.Connection, table: sa.Table, column: str, last: bytes | None) -> list[bytes]:
    """A hash chain's values from its beginning to ``last``, by one recursive query."""
    if last is None:
        return []
    depth = sa.literal(0).label("depth")
    links = sa.select(table.c.parent, table.c[column], depth).where(table.c.hash == last)
    chain = links.cte(recursive=True)
    earlier = sa.select(table.c.parent, table.c[column], chain.c.depth + 1)
    chain = chain.union_all(earlier.join(chain, table.c.hash == chain.c.parent))
    return list(connection.scalars(sa.select(chain.c[column]).order_by(chain.c.depth.desc())))


def _read_tokens(row: Any) -> list[Token]:
    count = row.completion_tokens
    if not count:
        return []
    top_ids = np.frombuffer(row.top_ids, dtype="<i4").reshape(count, -1)
    top_logprobs = np.frombuffer(row.top_logprobs, dtype="<f4").reshape(count, -1)
    return [
        Token(
            id=int(token_id), logprob=float(logprob), sampled_logprob=float(sampled),
            top_ids=tuple(top_ids[i].tolist()), top_logprobs=tuple(top_logprobs[i].tolist()),
            policy_version=row.policy_version, forced=bool(row.forced[i]),
            finish_reason=row.finish_reason if i == count - 1 else None,
        )
        for i, (token_id, logprob, sampled) in enumerate(
            zip(
                unpack_ids(row.ids), np.frombuffer(row.logprobs, dtype="<f4"),
                np.frombuffer(row.sampled_logprobs, dtype="<f4"), strict=True,
            )
        )
    ]  # fmt: skip


def _pack_floats(values: Sequence[float]) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()
