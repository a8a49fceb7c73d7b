"""What a version hears once more: replies that were accepted, and what was taught for the same wishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture.events import EXCLUDE, INCLUDE
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.samples import GATE_REJECTED, TRAINED, decode_examples, samples
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.versions import Versions
from openclaw_rl.types import Example, Scope, TurnRecord

#: Complaints whose examples may be heard again.
_POOL_TURNS = 16


class Rehearsal(Versions):
    """Examples of samples that are there already."""

    def __init__(self, serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
        super().__init__(learn_ledger.db)
        self._serve_ledger, self._learn_ledger = serve_ledger, learn_ledger
        self.fingerprint = ""
        """Of the model that is trained; what another one said is not learned from. Empty: any will do."""

    def is_foreign(self, turn: TurnRecord) -> bool:
        """Whether another model answered."""
        return bool(self.fingerprint and turn.fingerprint) and turn.fingerprint != self.fingerprint

    def _is_own(self) -> sa.ColumnElement[bool]:
        return samples.c.fingerprint.in_(("", self.fingerprint)) if self.fingerprint else sa.true()

    def replayed(self, version: int) -> list[Example]:
        """What a step that was claimed hears again."""
        policy = self.policy(version)
        ids: list[str] = policy.metrics.get("replay", []) if policy else []
        query = sa.select(samples.c.turn_id, samples.c.score, samples.c.data).where(
            samples.c.turn_id.in_(ids)
        )
        with self.db.connect() as connection:
            rows = {row.turn_id: row for row in connection.execute(query)}
        return self._examples([rows[i] for i in ids if i in rows and self._still_counts(i)])

    def pool(self, scope: Scope, wishes: Callable[[str], str], limit: int) -> list[Example]:
        """Earlier examples of what people still wish for, newest first: (user → all they wish for)."""
        query = (
            sa.select(samples.c.turn_id, samples.c.score, samples.c.data)
            .where(samples.c.scope == scope, samples.c.score < 0, samples.c.data.is_not(None))
            .where((samples.c.status == TRAINED) | (samples.c.reason == GATE_REJECTED), self._is_own())
            .order_by(samples.c.created_at.desc(), samples.c.turn_id)
            .limit(_POOL_TURNS)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        still = [row for row in rows if self._still_counts(row.turn_id)]
        found = self._examples(still)
        return [e for e in found if e.source.hint == wishes(e.source.user)][:limit]

    def _still_counts(self, turn_id: str) -> bool:
        """Not if a person excluded it, even if that was not pulled over yet."""
        verdict = self._learn_ledger.verdict(turn_id)
        said = [e.kind for e in self._serve_ledger.events_of(turn_id) if e.kind in (EXCLUDE, INCLUDE)]
        return verdict is not None and verdict.source != EXCLUDE and said[-1:] != [EXCLUDE]

    def _accepted(self, limit: int, scope: Scope) -> list[str]:
        """Replies that people accepted and a step learned from: the latest, the users taking turns.

        Not those that were excluded or found wanting since.
        """
        latest = sa.func.row_number().over(
            partition_by=samples.c.user, order_by=(samples.c.created_at.desc(), samples.c.turn_id)
        )
        query = (
            sa.select(samples.c.turn_id)
            .where(samples.c.status == TRAINED, samples.c.score > 0, samples.c.scope == scope)
            .where(self._is_own())
            .order_by(latest, samples.c.user)
            .limit(2 * limit)
        )
        with self.db.connect() as connection:
            found = list(connection.scalars(query))
        said = [(turn_id, self._learn_ledger.verdict(turn_id)) for turn_id in found]
        still = [turn_id for turn_id, now in said if now and now.score > 0 and now.source != EXCLUDE]
        return still[:limit]

    def _examples(self, rows: Sequence[Any]) -> list[Example]:
        found = [(self._serve_ledger.load_turn(row.turn_id), row) for row in rows]
        return [e for turn, row in found if turn for e in decode_examples(row.data, turn, row.score)]
