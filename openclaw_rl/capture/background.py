"""Background responses that have no complete turn: running, cancelled or failed ones. No words are in here.

A row goes when its reply is complete. One whose process is gone is not alive any more: on SQLite there is
only one process, which knows what it runs; on PostgreSQL it is a row that nobody has touched for a while.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

import sqlalchemy as sa

from openclaw_rl.capture.database import batched, began
from openclaw_rl.capture.schema import background
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import RUNNING, Unfinished

_ALIVE_S = 60.0


class BackgroundLedger:
    """The BackgroundStore protocol."""

    def __init__(self, ledger: ServeLedger) -> None:
        self._ledger = ledger
        self._is_shared = ledger.db.dialect.name == "postgresql"

    def begin(self, response_id: str, user: str, model: str, created_at: float) -> None:
        row = {"id": response_id, "user": user, "model": model, "created_at": created_at}
        with self._ledger.writing() as connection:
            insert = background.insert().values(**row, seen_at=time.time(), status=RUNNING)
            connection.execute(insert)

    def touch(self, response_id: str) -> bool:
        running = (background.c.id == response_id) & (background.c.status == RUNNING)
        with self._ledger.writing() as connection:
            update = background.update().where(running).values(seen_at=time.time())
            return connection.execute(update).rowcount > 0

    def find(self, response_id: str, user: str) -> Unfinished | None:
        mine = (background.c.id == response_id) & (background.c.user == user)
        with self._ledger.db.connect() as connection:
            row = connection.execute(sa.select(background).where(mine)).first()
        if row is None:
            return None
        alive = self._is_shared and row.status == RUNNING and row.seen_at > time.time() - _ALIVE_S
        return Unfinished(row.model, row.created_at, row.status, row.error, alive)

    def stop(self, response_id: str, status: str, error: str | None) -> None:
        running = (background.c.id == response_id) & (background.c.status == RUNNING)
        with self._ledger.writing() as connection:
            connection.execute(background.update().where(running).values(status=status, error=error))

    def remove(self, response_id: str) -> None:
        with self._ledger.writing() as connection:
            connection.execute(background.delete().where(background.c.id == response_id))


def background_of(ledger: ServeLedger, user: str, until: float = inf) -> list[str]:
    with ledger.db.connect() as connection:
        return list(connection.scalars(sa.select(background.c.id).where(*began(background, user, until))))


def erase_background(connection: sa.Connection, response_ids: Sequence[str]) -> None:
    for batch in batched(response_ids):
        connection.execute(background.delete().where(background.c.id.in_(batch)))


def erase_ended(connection: sa.Connection, before: float) -> None:
    """Those that were asked for before then, and whatever became of them."""
    connection.execute(background.delete().where(background.c.created_at < before))
