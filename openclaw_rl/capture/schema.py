"""The ledger's tables, for SQLite and PostgreSQL alike, and the migrations that lead to them.

Append-only: a later fact is a new row that points at the old one. What agents resend with every
request is stored once, by content: message bodies by their hash, conversations as chains of
messages, prompt ids as chains of token blocks. A session therefore grows with its new text only.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

metadata = sa.MetaData()
Hash = sa.LargeBinary(16)
#: SQLite only auto-numbers a column typed exactly INTEGER.
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _content_table(name: str, *columns: sa.Column[object]) -> sa.Table:
    return sa.Table(
        name, metadata, sa.Column("hash", Hash, primary_key=True), *columns, sqlite_with_rowid=False
    )


#: JSON text of one message, tool list or reply, exactly as sent.
bodies = _content_table("bodies", sa.Column("body", sa.LargeBinary, nullable=False))

#: A conversation prefix: the one before it plus one message.
nodes = _content_table("nodes", sa.Column("parent", Hash), sa.Column("body", Hash, nullable=False))

#: A prompt prefix: the one before it plus a fixed number of token ids (int32, little-endian).
blocks = _content_table("blocks", sa.Column("parent", Hash), sa.Column("ids", sa.LargeBinary, nullable=False))

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("seq", Serial, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("opened_at", sa.Double, nullable=False),
)

turns = sa.Table(
    "turns",
    metadata,
    sa.Column("seq", Serial, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("continues", sa.Text),
    sa.Column("node", Hash, comment="the request's messages"),
    sa.Column("tools", Hash),
    sa.Column("params", sa.Text, nullable=False, comment="the rest of the request, JSON"),
    sa.Column("reply", Hash, nullable=False),
    sa.Column("block", Hash, comment="the prompt's full blocks"),
    sa.Column("prompt_tail", sa.LargeBinary, nullable=False),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("completion_tokens", sa.Integer, nullable=False),
    sa.Column("ids", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("sampled_logprobs", sa.LargeBinary, nullable=False),
    sa.Column("top_ids", sa.LargeBinary, nullable=False),
    sa.Column("top_logprobs", sa.LargeBinary, nullable=False),
    sa.Column("forced", sa.LargeBinary, nullable=False),
    sa.Column("sampling", sa.Text, nullable=False),
    sa.Column("policy_version", sa.Integer, nullable=False),
    sa.Column("finish_reason", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("timings", sa.Text, nullable=False),
    sa.Index("turns_by_session", "session_id", "seq"),
)

#: Under which normalised conversations a later request finds a turn.
turn_keys = sa.Table(
    "turn_keys",
    metadata,
    sa.Column("key", Hash, primary_key=True),
    sa.Column("turn_id", sa.Text, primary_key=True),
    sqlite_with_rowid=False,
)

#: Whether the reply's last byte was handed to the client's connection.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("turn_id", sa.Text, primary_key=True),
    sa.Column("delivered", sa.Boolean, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sqlite_with_rowid=False,
)

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))


def _first(connection: sa.Connection) -> None:
    metadata.create_all(connection)


#: Migration n brings a ledger from version n to n + 1. Entries are never edited, only added.
MIGRATIONS: list[Callable[[sa.Connection], None]] = [_first]


def migrate(engine: sa.Engine) -> int:
    """Bring the ledger to the newest schema, in one transaction; returns the version."""
    with engine.begin() as connection:
        schema_version.create(connection, checkfirst=True)
        current = connection.execute(sa.select(sa.func.max(schema_version.c.version))).scalar() or 0
        if current > len(MIGRATIONS):
            raise ValueError(
                f"this ledger has schema version {current}, newer than this program's {len(MIGRATIONS)}; "
                "upgrade openclaw-rl"
            )
        for step in MIGRATIONS[current:]:
            step(connection)
            current += 1
            connection.execute(schema_version.insert().values(version=current))
    return current
