"""Conversations of the Responses API in the serve ledger, as their owner made them, and how they go.

A conversation's turns are one session, which has its id. It goes with that session, and what was said in a
turn goes with the turn. The methods of ``ConversationLedger`` block and raise if the database cannot be used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from math import inf

import sqlalchemy as sa

from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.database import batched, began
from openclaw_rl.capture.schema import conversation_items, conversations, sessions
from openclaw_rl.capture.serve_ledger import ServeLedger, lock_counters
from openclaw_rl.types import Json

#: How a conversation's id begins.
CONVERSATION = "conv_"


class ConversationLedger:
    """The ConversationStore protocol. ``redact`` says what is kept in place of an item or of metadata."""

    def __init__(
        self, ledger: ServeLedger, redact: Callable[[Json], Json], is_private: Callable[[str], bool]
    ) -> None:
        self._ledger, self._redact, self.is_private = ledger, redact, is_private

    def create(self, conversation_id: str, user: str, metadata: Json, items: Sequence[Json]) -> None:
        now = time.time()
        row = {"id": conversation_id, "user": user, "created_at": now, "used_at": now}
        with self._ledger.writing() as connection:
            connection.execute(conversations.insert().values(**row, metadata=self._kept(metadata)))
            self._append(connection, conversation_id, items, None)

    def find(self, conversation_id: str, user: str) -> Json | None:
        mine = (conversations.c.id == conversation_id) & (conversations.c.user == user)
        with self._ledger.db.connect() as connection:
            row = connection.execute(sa.select(conversations).where(mine)).first()
        return None if row is None else _shown(row)

    def update(self, conversation_id: str, metadata: Json) -> None:
        mine = conversations.c.id == conversation_id
        with self._ledger.writing() as connection:
            connection.execute(conversations.update().where(mine).values(metadata=self._kept(metadata)))

    def delete(self, conversation_id: str) -> None:
        erase_conversations(self._ledger, [conversation_id])

    def items(self, conversation_id: str) -> list[Json]:
        """Oldest first."""
        table = conversation_items
        query = sa.select(table.c.item).where(table.c.conversation == conversation_id).order_by(table.c.seq)
        with self._ledger.db.connect() as connection:
            return [json.loads(item) for item in connection.scalars(query)]

    def add_items(self, conversation_id: str, items: Sequence[Json], turn_id: str | None = None) -> bool:
        """False if the conversation is no longer there."""
        mine = conversations.c.id == conversation_id
        with self._ledger.writing() as connection:
            # Numbers follow the order of commits, also where several gateways write.
            lock_counters(connection)
            used = connection.execute(conversations.update().where(mine).values(used_at=time.time()))
            if not used.rowcount:
                return False
            self._append(connection, conversation_id, items, turn_id)
            return True

    def delete_item(self, conversation_id: str, item_id: str) -> bool:
        table = conversation_items
        this = (table.c.conversation == conversation_id) & (table.c.id == item_id)
        with self._ledger.writing() as connection:
            return connection.execute(table.delete().where(this)).rowcount > 0

    def _append(
        self, connection: sa.Connection, conversation_id: str, items: Sequence[Json], turn_id: str | None
    ) -> None:
        table = conversation_items
        last = sa.select(sa.func.max(table.c.seq)).where(table.c.conversation == conversation_id)
        first = (connection.scalar(last) or 0) + 1
        row = {"conversation": conversation_id, "turn": turn_id}
        rows = [
            {**row, "seq": seq, "id": item["id"], "item": self._kept(item, id=item["id"])}
            for seq, item in enumerate(items, first)
        ]
        if rows:
            connection.execute(table.insert(), rows)

    def _kept(self, value: Json, **as_it_is: str) -> bytes:
        return to_json({**self._redact(value), **as_it_is}).encode("utf-8", "surrogatepass")


def _shown(row: sa.Row[tuple[object, ...]]) -> Json:
    values = row._mapping
    return {
        "id": values["id"],
        "object": "conversation",
        "created_at": int(values["created_at"]),
        "metadata": json.loads(values["metadata"]),
    }


def conversations_of(ledger: ServeLedger, user: str | None, until: float = inf) -> list[str]:
    """Those begun until then; ``user`` None means everybody's."""
    query = sa.select(conversations.c.id).where(*began(conversations, user, until))
    with ledger.db.connect() as connection:
        return list(connection.scalars(query))


def export_conversations(ledger: ServeLedger, user: str) -> list[Json]:
    """All of a person's, each with its items."""
    stored = ConversationLedger(ledger, lambda value: value, lambda name: False)
    found = [stored.find(conversation_id, user) for conversation_id in conversations_of(ledger, user)]
    return [{**one, "items": stored.items(one["id"])} for one in found if one is not None]


# --- how they go -----------------------------------------------------------------------------


def erase_conversations(ledger: ServeLedger, ids: Sequence[str]) -> None:
    for batch in batched(ids):
        with ledger.writing() as connection:
            _erase(connection, batch)


def erase_from_conversations(
    connection: sa.Connection, turn_ids: Sequence[str], session_ids: Sequence[str]
) -> None:
    """What was said in these turns and after them; of these sessions, the whole conversation."""
    for batch in batched(session_ids):
        mine = conversations.c.id.in_(batch) & ~_session_of(sessions.c.user != conversations.c.user)
        _erase(connection, list(connection.scalars(sa.select(conversations.c.id).where(mine))))
    for batch in batched(turn_ids):
        _erase_turns(connection, batch)


def _session_of(whose: sa.ColumnElement[bool]) -> sa.Exists:
    """Whether a session has the conversation's id."""
    return sa.exists().where(sessions.c.id == conversations.c.id, whose)


def owner_of(ledger: ServeLedger, conversation_id: str) -> str | None:
    if not conversation_id.startswith(CONVERSATION):
        return None
    query = sa.select(conversations.c.user).where(conversations.c.id == conversation_id)
    with ledger.db.connect() as connection:
        return connection.scalar(query)


def erase_unused(connection: sa.Connection, before: float) -> None:
    """Conversations without a turn, to which nothing was added since."""
    answered = _session_of(sessions.c.user == conversations.c.user)
    unused = sa.select(conversations.c.id).where(conversations.c.used_at < before, ~answered)
    for batch in batched(list(connection.scalars(unused))):
        _erase(connection, batch)


def _erase(connection: sa.Connection, ids: Sequence[str]) -> None:
    # In this order, so that on PostgreSQL nobody can add an item in between.
    connection.execute(conversations.delete().where(conversations.c.id.in_(ids)))
    connection.execute(conversation_items.delete().where(conversation_items.c.conversation.in_(ids)))


def _erase_turns(connection: sa.Connection, turn_ids: Sequence[str]) -> None:
    table = conversation_items
    gone = table.c.turn.in_(turn_ids)
    first = sa.select(table.c.conversation, sa.func.min(table.c.seq).label("seq")).where(gone)
    for row in connection.execute(first.group_by(table.c.conversation)).all():
        mine = table.c.conversation == row.conversation
        # What a client added just before the turn is repeated in it; what an earlier turn has stays.
        earlier = mine & (table.c.seq < row.seq) & table.c.turn.is_not(None) & ~gone
        kept = connection.scalar(sa.select(sa.func.max(table.c.seq)).where(earlier)) or 0
        connection.execute(table.delete().where(mine, table.c.seq > kept))
