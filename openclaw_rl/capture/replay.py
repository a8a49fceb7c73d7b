"""What a version replays: accepted replies, and examples taught for the same wishes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture.events import EXCLUDE, INCLUDE, excluded_turns
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.samples import GATE_REJECTIONS, TRAINED, decode_examples, samples
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.versions import Versions
from openclaw_rl.types import Example, Scope, TurnRecord

#: Users whose accepted replies are replayed.
_ACTIVE = 32
#: Complaints whose examples may be replayed.
_POOL_TURNS = 16


class Rehearsal(Versions):
    """Examples of earlier samples."""

    def __init__(self, serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
        super().__init__(learn_ledger.db)
        self._serve_ledger, self._learn_ledger = serve_ledger, learn_ledger
        self.fingerprint = ""
        """Fingerprint of the model being trained; other models' replies are not learned from. Empty: any."""

    def is_foreign(self, turn: TurnRecord) -> bool:
        """Whether another model answered."""
        return bool(self.fingerprint and turn.fingerprint) and turn.fingerprint != self.fingerprint

    def _is_own(self) -> sa.ColumnElement[bool]:
        return samples.c.fingerprint.in_(("", self.fingerprint)) if self.fingerprint else sa.true()

    def replayed(self, version: int) -> list[Example]:
        """The examples that a claimed step replays."""
        policy = self.policy(version)
        ids: list[str] = policy.metrics.get("replay", []) if policy else []
        query = sa.select(samples.c.turn_id, samples.c.score, samples.c.data).where(
            samples.c.turn_id.in_(ids)
        )
        with self.db.connect() as connection:
            rows = {row.turn_id: row for row in connection.execute(query)}
        return self._wanted(self._examples([rows[i] for i in ids if i in rows and self._still_counts(i)]))

    def pool(
        self, scope: Scope, wishes: Callable[[str], str], limit: int, before: int | None = None
    ) -> list[Example]:
        """Examples of current wishes that versions earlier than ``before`` learned, newest first.

        ``wishes`` maps a user to all of theirs.
        """
        earlier = sa.true() if before is None else samples.c.step < before
        query = (
            sa.select(samples.c.turn_id, samples.c.score, samples.c.data, samples.c.created_at)
            .where(samples.c.scope == scope, samples.c.score < 0, samples.c.data.is_not(None))
            .where(self._is_own(), earlier)
            .order_by(samples.c.created_at.desc(), samples.c.turn_id.desc())
            .limit(_POOL_TURNS)
        )
        with self.db.connect() as connection:
            trained = connection.execute(query.where(samples.c.status == TRAINED)).all()
            rejected = connection.execute(query.where(samples.c.reason.in_(GATE_REJECTIONS))).all()
        newest = sorted([*trained, *rejected], key=lambda row: (row.created_at, row.turn_id), reverse=True)
        rows = newest[:_POOL_TURNS]
        still = [row for row in rows if self._still_counts(row.turn_id)]
        found = self._wanted(self._examples(still))
        return [e for e in found if e.source.hint == wishes(e.source.user)][:limit]

    def _still_counts(self, turn_id: str) -> bool:
        """Whether no user excluded it; exclusions that the learn process has not imported yet count."""
        verdict = self._learn_ledger.verdict(turn_id)
        said = [e.kind for e in self._serve_ledger.events_of(turn_id) if e.kind in (EXCLUDE, INCLUDE)]
        return verdict is not None and verdict.source != EXCLUDE and said[-1:] != [EXCLUDE]

    def _accepted(self, limit: int, scope: Scope, seed: int) -> list[str]:
        """Accepted replies that a step learned from, each user's latest first.

        The most recently active users take turns, in an order that depends on ``seed``. Replies that were
        excluded or got a worse verdict since are left out.
        """
        with self.db.connect() as connection:
            people = self._active(connection, scope)
            random.Random(seed).shuffle(people)
            share = -(-limit // max(1, len(people)))
            found = {user: self._latest_accepted(connection, scope, user, 2 * share) for user in people}
        chosen: list[str] = []
        for turn_id in (i for row in zip_longest(*found.values()) for i in row if i is not None):
            if len(chosen) < limit and self._still_pleases(turn_id):
                chosen.append(turn_id)
        return chosen

    def _active(self, connection: sa.Connection, scope: Scope) -> list[str]:
        """The users whose accepted replies were learned from last; an index seek per user, no full scan."""
        mine = self._learned(scope)
        people = sa.select(sa.func.min(samples.c.user).label("user")).where(*mine).cte(recursive=True)
        following = sa.select(sa.func.min(samples.c.user)).where(*mine, samples.c.user > people.c.user)
        each = people.union_all(sa.select(following.scalar_subquery()).where(people.c.user.is_not(None)))
        last = sa.select(sa.func.max(samples.c.created_at)).where(*mine, samples.c.user == each.c.user)
        query = sa.select(each.c.user).where(each.c.user.is_not(None))
        query = query.order_by(last.scalar_subquery().desc(), each.c.user).limit(_ACTIVE)
        return list(connection.scalars(query))

    def _latest_accepted(self, connection: sa.Connection, scope: Scope, user: str, limit: int) -> list[str]:
        query = sa.select(samples.c.turn_id).where(*self._learned(scope), samples.c.user == user)
        query = query.where(self._is_own()).order_by(samples.c.created_at.desc()).limit(limit)
        return list(connection.scalars(query))

    def _learned(self, scope: Scope) -> tuple[sa.ColumnElement[bool], ...]:
        return (samples.c.scope == scope, samples.c.status == TRAINED, samples.c.score == 1)

    def _still_pleases(self, turn_id: str) -> bool:
        now = self._learn_ledger.verdict(turn_id)
        return now is not None and now.score > 0 and now.source != EXCLUDE

    def _wanted(self, examples: Sequence[Example]) -> list[Example]:
        """Leave out examples on other turns' requests that a user excluded."""
        excluded = excluded_turns(self._serve_ledger.db, {i for e in examples for i in e.source.turn_ids[1:]})
        return [e for e in examples if excluded.isdisjoint(e.source.turn_ids[1:])]

    def _examples(self, rows: Sequence[Any]) -> list[Example]:
        found = [(self._serve_ledger.load_turn(row.turn_id), row) for row in rows]
        return [e for turn, row in found if turn for e in decode_examples(row.data, turn, row.score)]
