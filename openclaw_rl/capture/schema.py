"""The serve ledger's tables, for SQLite and PostgreSQL; ``migrations/serve`` creates them.

Append-only: a later fact is a new row that points at the old one. What agents resend with every
request is stored once, by content: message bodies by their hash, conversations as chains of
messages, prompt ids as chains of token blocks. A session therefore grows with its new text only.
Only ``counters``, ``turn_keys`` and ``conversations`` are updated: a summary, an index, and what clients own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from openclaw_rl.types import TurnRecord

metadata = sa.MetaData()
Hash = sa.LargeBinary(16)
#: SQLite uses a column as its row number only if its type is exactly INTEGER.
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _epoch() -> sa.Column[int]:
    """The prune generation in which a row was last needed by a new turn; see ``prune``."""
    return sa.Column("epoch", sa.Integer, nullable=False)


#: JSON text of one message, tool list, reply or set of parameters, exactly as sent.
bodies = sa.Table(
    "bodies",
    metadata,
    sa.Column("hash", Hash, primary_key=True),
    _epoch(),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

#: A conversation prefix: its parent prefix plus one message.
nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("hash", Hash, primary_key=True),
    _epoch(),
    sa.Column("parent", Hash),
    sa.Column("body", Hash, nullable=False),
    sqlite_with_rowid=False,
)

#: A prompt prefix: its parent prefix plus a fixed number of token ids (int32, little-endian).
blocks = sa.Table(
    "blocks",
    metadata,
    sa.Column("hash", Hash, primary_key=True),
    _epoch(),
    sa.Column("parent", Hash),
    sa.Column("ids", sa.LargeBinary, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("opened_at", sa.Double, nullable=False),
)

#: Fields of a turn that are columns of their own, with the default for turns of older ledgers. To add one,
#: add the field with its default to ``TurnRecord``, and the column in a migration.
FACTS: dict[str, str | int | float] = {
    field.name: field.default for field in fields(TurnRecord) if isinstance(field.default, (str, int, float))
}
_TYPES: dict[type, sa.types.TypeEngine[Any]] = {
    str: sa.Text(), bool: sa.Boolean(), int: sa.Integer(), float: sa.Double(),
}  # fmt: skip


def _fact(name: str, default: str | int | float) -> sa.Column[Any]:
    return sa.Column(name, _TYPES[type(default)], nullable=False, server_default=str(default))


#: ``seq`` follows the order of commits without gaps, so a reader that queries "seq > the last one
#: seen" misses nothing. The light columns come first: SQLite reads a long row only as far as needed.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("session", Number, nullable=False, comment="sessions.seq"),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("continues", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("policy_version", sa.Integer, nullable=False),
    sa.Column("finish_reason", sa.Text, nullable=False),
    sa.Column("engine_finish", sa.Text, comment="finish reason of the last token, as the engine gave it"),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("completion_tokens", sa.Integer, nullable=False),
    sa.Column("node", Hash, comment="the request's messages"),
    sa.Column("tools", Hash),
    sa.Column("params", Hash, nullable=False, comment="the rest of the request"),
    sa.Column("reply", Hash, nullable=False),
    sa.Column("block", Hash, comment="the prompt's full blocks"),
    sa.Column("sampling", sa.Text, nullable=False, comment="JSON, like the next two"),
    sa.Column("timings", sa.Text, nullable=False),
    sa.Column("lookup_keys", sa.Text, nullable=False),
    sa.Column("prompt_tail", sa.LargeBinary, nullable=False),
    sa.Column("ids", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("sampled_logprobs", sa.LargeBinary, nullable=False),
    sa.Column("forced", sa.LargeBinary, nullable=False),
    sa.Column("top_ids", sa.LargeBinary, nullable=False),
    sa.Column("top_logprobs", sa.LargeBinary, nullable=False),
    *(_fact(name, default) for name, default in FACTS.items()),
    sa.Index("turns_by_session", "session", "seq"),
    sa.Index("turns_by_time", "created_at"),
    sa.Index("turns_by_user", "user", "seq"),
)

#: The newest turn under each key by which later requests find it.
turn_keys = sa.Table(
    "turn_keys",
    metadata,
    sa.Column("key", Hash, primary_key=True),
    sa.Column("turn", Number, nullable=False, comment="turns.seq"),
    sqlite_with_rowid=False,
)

#: Whether the reply's last byte was handed to the client's connection.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("turn", Number, primary_key=True, autoincrement=False, comment="turns.seq"),
    sa.Column("delivered", sa.Boolean, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)

#: Later facts about a turn; see ``events.py``. ``once`` keeps most kinds unique per turn.
events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=False),
    sa.Column("turn", Number, nullable=False, comment="turns.seq; 0 for events about no turn"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("once", sa.Text, comment="the kind, or null where it may repeat"),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False, comment="JSON, compressed"),
    sa.UniqueConstraint("turn", "once"),
)

#: Of the Responses API; the session of its turns has the same id.
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("used_at", sa.Double, nullable=False, comment="when an item was last added"),
    sa.Column("metadata", sa.LargeBinary, nullable=False, comment="JSON"),
    sa.Index("conversations_by_user", "user"),
)

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("conversation", sa.Text, primary_key=True, comment="conversations.id"),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("turn", sa.Text, comment="turns.id; null where the client added the item by itself"),
    sa.Column("item", sa.LargeBinary, nullable=False, comment="JSON"),
    sa.Index("conversation_items_by_turn", "turn"),
)

#: Responses of ``background: true`` that have no complete turn.
background = sa.Table(
    "background",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, comment="turns.id, once there is a turn"),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False, comment="when its process last said that it runs"),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("error", sa.Text),
)

#: ``generation`` (of prunes), ``last_turn`` and ``last_session`` (the highest seq ever given), and how
#: many ``sessions``, ``turns`` and ``finish_<reason>`` there are. Writers lock the first of these rows.
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", Number, nullable=False),
)


#: Built once: every append runs it.
_READ_COUNTERS = sa.select(counters.c.name, counters.c.value)


def read_counters(connection: sa.Connection) -> Counter[str]:
    """By name; a missing counter is 0."""
    return Counter({name: value for name, value in connection.execute(_READ_COUNTERS)})
