"""Which host learns, if several share one PostgreSQL: leases with an expiry and a fencing token.

A learn process joins with a token larger than any before it and renews its lease. It then takes further
leases by name: the judging, and each scope that it trains. Every write transaction first checks that its own
lease is valid, so a host that was disconnected or suspended can write nothing once another may have taken
over. Writers of the learn ledger take turns (``LearnLedger``), so nothing happens between check and commit.

Time is the database's. With SQLite a file lock ensures a single learn process, so there are no leases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import LearnLedger, Number, metadata
from openclaw_rl.capture.samples import policies
from openclaw_rl.capture.versions import CANDIDATE, TRAINING
from openclaw_rl.types import Json, Scope

#: Its holder imports new turns, judges them and makes samples from verdicts.
JUDGING = "judging"
TTL_S = 15.0
#: A scope that was not worked on for this long is released to other hosts.
_IDLE_S = 10.0

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("token", Number, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
)


class LeaseLost(ConnectionError):
    """Another host may have taken over; nothing was written."""

    def __init__(self) -> None:
        super().__init__("this host's lease has run out, and another may have taken over")


def scope_lease(scope: Scope) -> str:
    return f"scope:{scope}"


class Leases:
    """The leases of one learn process. Thread-safe."""

    def __init__(
        self,
        ledger: LearnLedger,
        holder: str,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``holder`` names the host and stays the same when its learn process restarts."""
        self._ledger, self._holder, self.ttl_s, self._clock = ledger, holder, ttl_s, clock
        self._own = f"learner:{holder}"
        self._used: dict[str, float] = {}
        """The leases held, and when each was last used, on the monotonic clock."""
        self._lock = threading.Lock()
        self._insert = postgresql.insert if ledger.db.dialect.name == "postgresql" else sqlite.insert
        self.token = 0

    def _now(self) -> sa.ColumnElement[float]:
        if self._clock is None and self._ledger.db.dialect.name == "postgresql":
            return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)
        return sa.literal((self._clock or time.time)(), sa.Double)

    # --- one process ---------------------------------------------------------------------------

    def join(self) -> None:
        """Start. Releases what this host's previous process held; the caller ensures that it is dead."""
        with database.writing(self._ledger.db) as connection:
            self.token = int(self._ledger.marks(connection)["lease_token"]) + 1
            self._ledger.set_mark(connection, "lease_token", self.token)
            connection.execute(leases.delete().where(leases.c.holder == self._holder))
            self._put(connection, self._own)
        self._used = {}
        self._ledger.guard(self.check)

    def check(self, connection: sa.Connection) -> None:
        """Raise LeaseLost if the lease expired; call it first in every write transaction."""
        if not self._is_held(connection, self._own):
            raise LeaseLost

    def confirm(self) -> int:
        """Our token; LeaseLost if the lease expired."""
        with self._ledger.db.connect() as connection:
            self.check(connection)
        return self.token

    def renew(self) -> None:
        """Extend all leases by ``ttl_s``, and release idle scopes."""
        with self._lock:
            idle = [name for name, at in self._used.items() if time.monotonic() - at > _IDLE_S]
            with database.writing(self._ledger.db) as connection:
                mine = (leases.c.holder == self._holder) & (leases.c.token == self.token)
                connection.execute(
                    leases.update().where(mine).values(expires_at=self._now() + sa.literal(self.ttl_s))
                )
                gone = self._release_idle(connection, idle)
            for name in gone:
                del self._used[name]

    def _release_idle(self, connection: sa.Connection, names: list[str]) -> list[str]:
        """A scope with an unfinished step is kept, however long the step takes."""
        begun = sa.select(policies.c.scope).where(policies.c.status.in_((TRAINING, CANDIDATE)))
        busy = {JUDGING, *map(scope_lease, connection.scalars(begun))}
        free = [name for name in names if name not in busy]
        mine = leases.c.name.in_(free) & (leases.c.holder == self._holder)
        if free:
            connection.execute(leases.delete().where(mine))
        return free

    def leave(self) -> None:
        """Release everything at once."""
        with database.writing(self._ledger.db) as connection:
            mine = (leases.c.holder == self._holder) & (leases.c.token == self.token)
            connection.execute(leases.delete().where(mine))

    # --- names ---------------------------------------------------------------------------------

    def leads(self, scope: Scope) -> bool:
        return self.take(scope_lease(scope))

    def judges(self) -> bool:
        return self.take(JUDGING)

    def take(self, name: str) -> bool:
        """Take the lease unless another process holds it; True if this process holds it now."""
        with self._lock:
            if name not in self._used:
                with self._ledger.db.connect() as connection:
                    query = sa.select(leases.c.holder).where(leases.c.name == name, self._counts())
                    if connection.execute(query).first() is not None:
                        return False
                with database.writing(self._ledger.db) as connection:
                    connection.execute(leases.delete().where(~self._counts()))
                    if not self._put(connection, name):
                        return False
            self._used[name] = time.monotonic()
            return True

    def holds_scope(self, connection: sa.Connection, scope: Scope) -> bool:
        """Checked in the caller's transaction, so it stays true until the commit."""
        return self._is_held(connection, scope_lease(scope))

    def _counts(self) -> sa.ColumnElement[bool]:
        return leases.c.expires_at > self._now()

    def _is_held(self, connection: sa.Connection, name: str) -> bool:
        mine = (leases.c.holder == self._holder) & (leases.c.token == self.token) & self._counts()
        return (
            connection.execute(sa.select(leases.c.name).where(leases.c.name == name, mine)).first()
            is not None
        )

    def _put(self, connection: sa.Connection, name: str) -> bool:
        values = {
            "name": name, "holder": self._holder, "token": self.token,
            "expires_at": self._now() + sa.literal(self.ttl_s),
        }  # fmt: skip
        return bool(connection.execute(self._insert(leases).values(values).on_conflict_do_nothing()).rowcount)


def view_leases(ledger: LearnLedger) -> list[Json]:
    """Hosts and the leases they hold, as shown by ``/v1/status``."""
    with ledger.db.connect() as connection:
        rows = connection.execute(sa.select(leases).order_by(leases.c.token, leases.c.name)).all()
    found: dict[str, Json] = {}
    for row in rows:
        own = row.name == f"learner:{row.holder}"
        host = found.setdefault(row.holder, {"host": row.holder, "expires_at": row.expires_at, "holds": []})
        host["holds"] += [] if own else [row.name]
    return list(found.values())
