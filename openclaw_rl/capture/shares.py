"""Keeps one user from dominating a policy that several share.

One user's share of what such a policy learns in a day is bounded; the rest of their samples waits until
others have taught enough, or for another day. A sudden one-sided wave (many complaints of one user who did
not complain like that before, while others do not) is held until the owner has decided about it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import Number, metadata
from openclaw_rl.capture.replay import Rehearsal
from openclaw_rl.capture.samples import policies, samples, scope_column
from openclaw_rl.capture.versions import READY
from openclaw_rl.types import Json, Scope

_DAY_S = 86400.0
#: This many samples of one user are learned in a day regardless of others.
LEAST_A_DAY = 4
#: Complaints of one user within a day that can be a wave …
WAVE = 8
#: … if they are at least this share of the user's verdicts, and …
_ONE_SIDED = 0.9
#: … more than 3 times the user's daily mean of the 14 days before, and more than 2 times other users' mean.
_SUDDEN, _HISTORY_DAYS, _ALONE = 3.0, 14, 2.0
#: Waiting samples considered; only their light columns are read.
_MOST = 10_000
HELD, LEARNED, DISCARDED = "held", "learned", "discarded"
WAITS = "waits for the owner: a sudden wave of complaints by one key"
SET_ASIDE = "the owner set it aside with a wave of complaints by one key"

waves = sa.Table(
    "waves",
    metadata,
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    scope_column(),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("since", sa.Double, nullable=False, comment="its first complaint"),
    sa.Column("until", sa.Double, nullable=False, comment="its last one so far"),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("decided_at", sa.Double),
    sa.Index("waves_by_user", "scope", "user", "state"),
)


@dataclass(frozen=True, slots=True)
class Ready:
    """A sample that may go into the next step."""

    turn_id: str
    user: str
    strength: float
    created_at: float


class Shares(Rehearsal):
    """Chooses which waiting samples may be learned from now."""

    is_shared: Callable[[Scope], bool] = staticmethod(lambda scope: False)
    """Whether a scope's policy serves more than one user."""
    daily_share = 1.0
    """One user's largest share of what a shared policy learns in a day; 1 turns bounds and waves off."""

    def _is_guarded(self, scope: Scope) -> bool:
        return self.daily_share < 1 and self.is_shared(scope)

    def _ready(
        self, connection: sa.Connection, scope: Scope, limit: int = _MOST, before: float | None = None
    ) -> list[Ready]:
        """Samples that may go into the next step, in the order of their turns."""
        guarded = self._is_guarded(scope)
        columns = [samples.c[name] for name in Ready.__slots__]
        query = sa.select(*columns).where(samples.c.status == READY, samples.c.scope == scope)
        query = query.order_by(samples.c.created_at, samples.c.turn_id).limit(_MOST if guarded else limit)
        found = [Ready(*row) for row in connection.execute(query)]
        if guarded:
            found = self._within_share(connection, found, scope)
        return [row for row in found if before is None or row.created_at < before][:limit]

    def _within_share(self, connection: sa.Connection, found: list[Ready], scope: Scope) -> list[Ready]:
        held = {row.user for row in connection.execute(sa.select(waves).filter_by(scope=scope, state=HELD))}
        found = [row for row in found if row.user not in held]
        used, waiting = self._learned_today(connection, scope), Counter(row.user for row in found)
        everybody, factor = used.total() + waiting.total(), self.daily_share / (1 - self.daily_share)
        left = {
            user: max(LEAST_A_DAY, int(factor * (everybody - used[user] - number))) - used[user]
            for user, number in waiting.items()
        }
        taken: Counter[str] = Counter()
        chosen = []
        for row in found:
            taken[row.user] += 1
            if taken[row.user] <= left[row.user]:
                chosen.append(row)
        return chosen

    def _learned_today(self, connection: sa.Connection, scope: Scope) -> Counter[str]:
        """Samples of each user in the steps of the last day, whatever their outcome."""
        query = (
            sa.select(samples.c.user, sa.func.count())
            .join(policies, policies.c.version == samples.c.step)
            .where(policies.c.scope == scope, policies.c.created_at > time.time() - _DAY_S)
            .group_by(samples.c.user)
        )
        return Counter({user: int(number) for user, number in connection.execute(query)})

    # --- waves -------------------------------------------------------------------------------

    def _watch_wave(self, connection: sa.Connection, scope: Scope, user: str, at: float) -> None:
        """After a user's complaint: start a wave if there is one, or extend the one being held."""
        if not self._is_guarded(scope):
            return
        mine = sa.select(waves).filter_by(scope=scope, user=user)
        last = connection.execute(mine.order_by(waves.c.id.desc()).limit(1)).first()
        if last is not None and last.state == HELD:
            values = {"number": last.number + 1, "until": max(last.until, at)}
            connection.execute(waves.update().where(waves.c.id == last.id).values(values))
            return
        decided = 0.0 if last is None else float(last.decided_at or 0.0)
        own = (samples.c.scope == scope) & (samples.c.user == user)
        # Verdicts arrive in any order; the day ends with the user's latest judged reply.
        at = float(connection.scalar(sa.select(sa.func.max(samples.c.created_at)).where(own)) or at)
        number, since = self._wave(connection, scope, user, max(at - _DAY_S, decided), at)
        if number:
            row = {"scope": scope, "user": user, "since": since, "until": at, "number": number}
            connection.execute(waves.insert().values(**row, state=HELD))

    def _wave(
        self, connection: sa.Connection, scope: Scope, user: str, start: float, end: float
    ) -> tuple[int, float]:
        """Number of complaints, and the time of the first; 0 if it is no wave."""
        complaints, others, first = Counter[str](), Counter[str](), end
        window = samples.c.created_at.between(start, end) & (samples.c.scope == scope)
        for row in connection.execute(
            sa.select(samples.c.user, samples.c.score, samples.c.created_at).where(window)
        ):
            (complaints if row.score < 0 else others)[row.user] += 1
            first = min(first, row.created_at) if row.user == user else first
        number = complaints[user]
        people = {*complaints, *others} - {user}
        usual = sum(complaints[name] for name in people) / max(1, len(people))
        one_sided = number >= max(WAVE, _ONE_SIDED * (number + others[user]))
        if (
            not one_sided
            or number <= _ALONE * usual
            or number <= _SUDDEN * self._usual(connection, scope, user, start)
        ):
            return 0, first
        return number, first

    def _usual(self, connection: sa.Connection, scope: Scope, user: str, before: float) -> float:
        """Complaints per day, counted from the first within the two weeks before."""
        mine = (samples.c.scope == scope) & (samples.c.user == user) & (samples.c.score < 0)
        past = samples.c.created_at.between(before - _HISTORY_DAYS * _DAY_S, before)
        query = sa.select(sa.func.count(), sa.func.min(samples.c.created_at)).where(mine, past)
        number, first = connection.execute(query).one()
        return number / max(1.0, (before - first) / _DAY_S) if number else 0.0

    def is_held(self, scope: Scope, user: str) -> bool:
        with self.db.connect() as connection:
            query = sa.select(waves.c.id).filter_by(scope=scope, user=user, state=HELD)
            return connection.execute(query).first() is not None

    def list_waves(self, states: Collection[str] = (HELD, LEARNED, DISCARDED)) -> list[Json]:
        """Newest first."""
        query = sa.select(waves).where(waves.c.state.in_(states)).order_by(waves.c.id.desc()).limit(100)
        with self.db.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def decide_wave(self, wave_id: int, learn: bool) -> Json | None:
        """Apply the owner's decision on a wave; None if no wave with this id is held."""
        with database.writing(self.db) as connection:
            query = sa.select(waves).filter_by(id=wave_id, state=HELD)
            wave: Any = connection.execute(query).first()
            if wave is None:
                return None
            if not learn:
                self._set_wave_aside(connection, wave)
            state, now = LEARNED if learn else DISCARDED, time.time()
            changed = waves.update().where(waves.c.id == wave_id).values(state=state, decided_at=now)
            connection.execute(changed)
            return {**wave._mapping, "state": state, "decided_at": now}

    def _set_wave_aside(self, connection: sa.Connection, wave: Any) -> None:
        mine = (samples.c.scope == wave.scope) & (samples.c.user == wave.user) & (samples.c.status == READY)
        gone = samples.update().where(mine, samples.c.created_at >= wave.since)
        number = connection.execute(gone.values(status="excluded", reason=SET_ASIDE)).rowcount
        self._count(connection, READY, None, -number)
        self._count(connection, "excluded", SET_ASIDE, number)

    def _count(self, connection: sa.Connection, status: str, reason: str | None, number: int) -> None:
        name = f"sample:{status}" + (f":{reason}" if reason else "")
        self._learn_ledger.add_mark(connection, name, number)
