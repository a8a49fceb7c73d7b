"""The share of each scope's traffic that the local model answers instead of the upstream one, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import LearnLedger, Number, metadata, verdicts
from openclaw_rl.capture.samples import samples, scope_column, swaps
from openclaw_rl.types import EVERYONE, UPSTREAM_VERSION, Json, Scope

#: How many of the newest verdicts are read.
_MOST = 2000
_LISTED = 100

takeovers = sa.Table(
    "takeovers",
    metadata,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    scope_column(),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class TrafficShare:
    """A traffic share, since when, and why."""

    share: float = 0.0
    at: float = 0.0
    why: str = "nothing was learned yet"


@dataclass(frozen=True, slots=True)
class TakeOverCursor:
    """How far somebody has looked: the last verdict that came to something, and the last swap."""

    verdict: int = 0
    swap: int = 0


class TakeOvers:
    """Append-only; a scope's newest row counts. The learn process writes it, the server follows it."""

    def __init__(self, ledger: LearnLedger) -> None:
        self.db, self._ledger = ledger.db, ledger

    def changed_scopes(self, seen: TakeOverCursor | None) -> tuple[list[Scope], TakeOverCursor]:
        """Scopes in which something happened since then: two queries, however many people there are."""
        judged = sa.select(samples.c.scope).join(verdicts, verdicts.c.turn_id == samples.c.turn_id)
        seen = seen or TakeOverCursor()
        with self.db.connect() as connection:
            now = TakeOverCursor(
                int(self._ledger.marks(connection)["cursor_verdicts"]),
                int(connection.scalar(sa.select(sa.func.max(swaps.c.seq))) or 0),
            )
            found = set(connection.scalars(judged.where(verdicts.c.seq > seen.verdict).distinct()))
            changed = sa.select(swaps.c.scope).where(swaps.c.seq > seen.swap)
            found.update(connection.scalars(changed.distinct()))
        return sorted(found), now

    def shares(self) -> dict[Scope, float]:
        newest = sa.select(sa.func.max(takeovers.c.seq)).group_by(takeovers.c.scope)
        with self.db.connect() as connection:
            rows = connection.execute(sa.select(takeovers).where(takeovers.c.seq.in_(newest))).all()
        return {row.scope: row.share for row in rows}

    def current(self, scope: Scope) -> TrafficShare:
        return next(iter(self.history(scope, 1)), TrafficShare())

    def history(self, scope: Scope, limit: int = _LISTED) -> list[TrafficShare]:
        """Newest first."""
        query = sa.select(takeovers.c.share, takeovers.c.at, takeovers.c.why).where(
            takeovers.c.scope == scope
        )
        with self.db.connect() as connection:
            rows = connection.execute(query.order_by(takeovers.c.seq.desc()).limit(limit)).all()
        return [TrafficShare(*row) for row in rows]

    def go(self, scope: Scope, share: float, why: str) -> None:
        with database.writing(self.db) as connection:
            connection.execute(takeovers.insert().values(scope=scope, share=share, at=time.time(), why=why))

    def reactions(self, scope: Scope, since: float = 0.0) -> list[tuple[int, str, int]]:
        """Verdicts on replies since ``since``, oldest first: version, user, score."""
        query = (
            sa.select(samples.c.policy_version, samples.c.user, samples.c.score)
            .where(samples.c.scope == scope, samples.c.created_at >= since)
            .order_by(samples.c.created_at.desc(), samples.c.turn_id)
            .limit(_MOST)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return [(row.policy_version, row.user, row.score) for row in reversed(rows)]

    def view(self, scope: Scope = EVERYONE) -> Json:
        """What ``/v1/take-over`` shows."""
        history = self.history(scope)
        now = history[0] if history else TrafficShare()
        found = self.reactions(scope, now.at)
        elsewhere = [score for version, _, score in found if version == UPSTREAM_VERSION]
        here = [score for version, _, score in found if version != UPSTREAM_VERSION]
        return {
            "scope": scope,
            "share": now.share,
            "since": now.at or None,
            "why": now.why,
            "here": _summary(here),
            "upstream": _summary(elsewhere),
            "history": [{"share": each.share, "at": each.at, "why": each.why} for each in history],
        }


def _summary(scores: list[int]) -> Json:
    """Number of verdicts, and their mean from -1 to 1."""
    return {"verdicts": len(scores), "mean": sum(scores) / len(scores) if scores else None}
