"""Forgetting: erases turns from both databases, and undoes the versions that learned from them.

A turn's text is repeated in the history of later turns, and is the next state of the turn before: the former
are erased with it, the latter loses its verdict. In each scope, the last version from before the first
forgotten example serves again; everything else that later versions had learned is queued for a step again,
with the teacher's answers as recorded, and retrained in the background. Answers whose teacher's prompt held
forgotten text are erased, too; a wish that remains is taught again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import sqlalchemy as sa

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.background import erase_background
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.conversations import erase_from_conversations
from openclaw_rl.capture.database import batched, began
from openclaw_rl.capture.events import REACTIONS
from openclaw_rl.capture.learn_ledger import tasks
from openclaw_rl.capture.rehome import rehome_wishes
from openclaw_rl.capture.sample_turns import (
    REQUEST,
    SOURCE_GONE,
    WISH,
    made_from,
    sample_turns,
    strip_samples,
)
from openclaw_rl.capture.samples import GATE_REJECTIONS, TRAINED, attempts, policies, samples
from openclaw_rl.capture.serve_ledger import ServeLedger, lock_counters
from openclaw_rl.capture.shares import waves
from openclaw_rl.capture.steps import CLAIMED, EXCLUDED, Steps
from openclaw_rl.capture.unjudged import count_left_out
from openclaw_rl.capture.versions import CANDIDATE, READY, RETIRED, TRAINING
from openclaw_rl.capture.wishes import (
    CURRENT,
    NOTHING_TRIED,
    ON_HOLD,
    TO_TEACH,
    WishRecord,
    wish_turns,
    wishes,
)
from openclaw_rl.types import BASE_VERSION, Scope

FORGOTTEN = "undone: something that it had learned was forgotten"
_NEW_OPTIMIZER = "new_optimizer"
CHANGED = "undone: a wish that it had learned was changed or paused"


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """What one request to forget comes to."""

    turn_ids: tuple[str, ...]
    before: tuple[str, ...]
    """Turns that stay, but whose next state is erased."""

    def also(self, turn_ids: Iterable[str]) -> ErasePlan:
        return replace(self, turn_ids=tuple(dict.fromkeys([*self.turn_ids, *turn_ids])))


def choose(ledger: ServeLedger, condition: sa.ColumnElement[bool]) -> ErasePlan:
    """The turns that meet it, all that repeat them, and those judged from them."""
    turns = schema.turns
    first = sa.select(turns.c.session, sa.func.min(turns.c.seq).label("seq")).where(condition)
    first_of = first.group_by(turns.c.session).subquery()
    later = sa.and_(turns.c.session == first_of.c.session, turns.c.seq >= first_of.c.seq)
    with ledger.db.connect() as connection:
        rows = connection.execute(sa.select(turns.c.id, turns.c.continues).join(first_of, later)).all()
    ids = [row.id for row in rows]
    return ErasePlan(tuple(ids), tuple({row.continues for row in rows if row.continues} - set(ids)))


def erase_turns(ledger: ServeLedger, chosen: ErasePlan) -> int:
    """Out of the serve ledger, with all that points at them; what nothing needs any more is the sweep's."""
    number = 0
    for batch in batched(chosen.turn_ids):
        with ledger.writing() as connection:
            number += _erase_batch(ledger, connection, batch)
    events, turns = schema.events, schema.turns
    for batch in batched(chosen.before):
        with ledger.writing() as connection:
            seqs = list(connection.scalars(sa.select(turns.c.seq).where(turns.c.id.in_(batch))))
            quoting = sa.and_(events.c.turn.in_(seqs), events.c.kind.in_(REACTIONS))
            counters, left = lock_counters(connection), turns.c.seq.in_(seqs)
            counters.subtract(count_left_out(connection, left))
            connection.execute(events.delete().where(quoting))
            counters.update(count_left_out(connection, left))
            ledger.set_counters(connection, counters)
    return number


def _erase_batch(ledger: ServeLedger, connection: sa.Connection, turn_ids: Sequence[str]) -> int:
    turns, keys, sessions = schema.turns, schema.turn_keys, schema.sessions
    counters = lock_counters(connection)
    columns = (turns.c.seq, turns.c.session, turns.c.finish_reason)
    rows = connection.execute(sa.select(*columns).where(turns.c.id.in_(turn_ids))).all()
    seqs = [row.seq for row in rows]
    left_out = count_left_out(connection, turns.c.seq.in_(seqs))
    connection.execute(keys.delete().where(keys.c.turn.in_(seqs)))
    for later in (schema.deliveries, schema.events):
        connection.execute(later.delete().where(later.c.turn.in_(seqs)))
    connection.execute(turns.delete().where(turns.c.seq.in_(seqs)))
    empty = sessions.c.seq.in_({row.session for row in rows}) & ~sa.exists().where(
        turns.c.session == sessions.c.seq
    )
    emptied = list(connection.scalars(sa.select(sessions.c.id).where(empty)))
    erase_from_conversations(connection, turn_ids, emptied)
    erase_background(connection, turn_ids)
    gone = Counter(f"finish_{row.finish_reason}" for row in rows)
    gone.update(left_out)
    gone.update(sessions=connection.execute(sessions.delete().where(empty)).rowcount, turns=len(rows))
    ledger.set_counters(connection, {name: counters[name] - number for name, number in gone.items()})
    return len(rows)


def _touched(chosen: ErasePlan) -> Iterator[sa.ColumnElement[bool]]:
    """The samples of these turns, and those with examples from them."""
    for ids, roles in ((chosen.turn_ids, (REQUEST, WISH)), (chosen.before, (WISH,))):
        for batch in batched(ids):
            yield samples.c.turn_id.in_(batch) | samples.c.turn_id.in_(made_from(batch, roles))


class EraseMixin(Steps):
    """The same in the learn process's database, in one transaction."""

    def erase(self, chosen: ErasePlan, has_weights: Callable[[int], bool]) -> dict[Scope, int]:
        """Nothing of them is left; which version each scope goes back to that had learned from any."""
        went_back: dict[Scope, int] = {}
        judged = [*chosen.turn_ids, *chosen.before]
        with database.writing(self.db) as connection:
            for scope, first in self._first_steps(connection, _touched(chosen)).items():
                went_back[scope] = self._undo(connection, scope, first, has_weights)
            for batch in batched(judged):
                self._erase_samples(connection, batch)
                for turn_id in batch:
                    self._learn_ledger.drop_verdicts(connection, turn_id)
                for table in (tasks, attempts, wish_turns):
                    connection.execute(table.delete().where(table.c.turn_id.in_(batch)))
            for batch in batched(judged):
                rehome_wishes(connection, batch, self._words_of)
            self._strip(connection, chosen)
            theirs = (samples.c.user == waves.c.user) & (samples.c.scope == waves.c.scope)
            connection.execute(waves.delete().where(~sa.exists().where(theirs)))
        return went_back

    def _words_of(self, turn_id: str) -> str | None:
        verdict = self._learn_ledger.verdict(turn_id)
        return next(iter(verdict.hints), None) if verdict is not None else None

    def _strip(self, connection: sa.Connection, chosen: ErasePlan) -> None:
        """Examples from these turns leave others' samples; a wish whose sample is empty is taught again."""
        for sample in strip_samples(connection, chosen.turn_ids, chosen.before):
            mine = samples.c.turn_id == sample
            before = connection.execute(sa.select(samples.c.status, samples.c.reason).where(mine)).one()
            gone = {"status": EXCLUDED, "reason": SOURCE_GONE, "step": None}
            connection.execute(samples.update().where(mine).values(gone))
            self._count(connection, before.status, before.reason, -1)
            self._count(connection, EXCLUDED, SOURCE_GONE, 1)
            current = (wishes.c.turn_id == sample) & wishes.c.status.in_(CURRENT)
            connection.execute(wishes.update().where(current).values(status=TO_TEACH))
        for ids, role in ((chosen.turn_ids, REQUEST), ((*chosen.turn_ids, *chosen.before), WISH)):
            for batch in batched(ids):
                link = sample_turns.c.turn_id.in_(batch) & (sample_turns.c.role == role)
                connection.execute(sample_turns.delete().where(link))

    def change_wish(
        self,
        wish: WishRecord,
        turn_ids: Sequence[str],
        text: str,
        hold: bool,
        has_weights: Callable[[int], bool],
        ends_as: str | None = None,
    ) -> dict[Scope, int]:
        """Undo what was learned for a wish, and teach it in its new wording, or put it on hold.

        Those of the person's other wishes that were taught together with it are taught again. ``ends_as``: it
        is over, with this status.
        """
        went_back: dict[Scope, int] = {}
        mine = wishes.c.turn_id == wish.turn_id
        unlearned = sa.select(samples.c.turn_id).where(samples.c.step.is_(None))
        others = (wishes.c.user == wish.user) & (wishes.c.scope == wish.scope) & wishes.c.status.in_(CURRENT)
        others &= wishes.c.turn_id.in_(unlearned)
        said = wish.said or (wish.text if text != wish.text else "")
        values = {"text": text, "said": said, "status": ends_as or (ON_HOLD if hold else TO_TEACH),
                  "ended_at": wish.ended_at if ends_as else None, **NOTHING_TRIED}  # fmt: skip
        with database.writing(self.db) as connection:
            filed = [samples.c.turn_id.in_(batch) for batch in batched(turn_ids)]
            for scope, first in self._first_steps(connection, filed).items():
                went_back[scope] = self._undo(connection, scope, first, has_weights, CHANGED)
            connection.execute(wishes.update().where(others).values(status=TO_TEACH))
            connection.execute(wishes.update().where(mine).values(values))
        return went_back

    def forgotten_versions(self) -> list[int]:
        """Versions whose files must be deleted."""
        query = sa.select(policies.c.version, policies.c.gate).where(policies.c.status == RETIRED)
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return [row.version for row in rows if json.loads(row.gate).get("reason") in (FORGOTTEN, CHANGED)]

    def _first_steps(
        self, connection: sa.Connection, which: Iterable[sa.ColumnElement[bool]]
    ) -> dict[Scope, int]:
        """Per scope, the first version that had one of these among its samples, whatever its status."""
        found: dict[Scope, int] = {}
        for condition in which:
            query = sa.select(samples.c.scope, sa.func.min(samples.c.step)).where(
                condition, samples.c.step.is_not(None)
            )
            for scope, step in connection.execute(query.group_by(samples.c.scope)):
                found[scope] = min(step, found.get(scope, step))
        return found

    def _undo(
        self,
        connection: sa.Connection,
        scope: Scope,
        first: int,
        has_weights: Callable[[int], bool],
        why: str = FORGOTTEN,
    ) -> int:
        serving = self._serving(connection, scope)
        lineage = self._lineage(connection, serving, scope)
        usable = (v for v in lineage if v < first and (v == BASE_VERSION or has_weights(v)))
        target = next(usable, BASE_VERSION)
        # If older weights are missing, what they had learned is learned again as well.
        first = min([first, *(v for v in lineage if v > target)])
        if target != serving:
            self._serve(connection, target, why, scope)
        undone = (policies.c.scope == scope) & (policies.c.version >= first)
        self._uncount(connection, undone)
        self._retire(connection, undone, why)
        self._release_since(connection, scope, first)
        return target

    def _retire(self, connection: sa.Connection, undone: sa.ColumnElement[bool], why: str) -> None:
        """What stays known of these versions: why they ended, whether they began with a new optimizer."""
        gate = {"passed": False, "reason": why, "checks": [], "undone": True}
        columns = (policies.c.version, policies.c.metrics, policies.c.gate)
        rows = connection.execute(sa.select(*columns).where(undone)).all()
        connection.execute(
            policies.update().where(undone).values(status=RETIRED, gate=to_json(gate), metrics="{}")
        )
        for row in rows:
            if any(json.loads(facts).get(_NEW_OPTIMIZER) for facts in (row.metrics, row.gate)):
                self._update(connection, row.version, gate=to_json({**gate, _NEW_OPTIMIZER: True}))

    def _uncount(self, connection: sa.Connection, undone: sa.ColumnElement[bool]) -> None:
        """Versions that are trained again must not count twice against their wishes."""
        checked = policies.c.status.not_in((TRAINING, CANDIDATE))
        made = (
            sa.select(wish_turns.c.wish, policies.c.version)
            .join(samples, samples.c.turn_id == wish_turns.c.turn_id)
            .join(policies, policies.c.version == samples.c.step)
            .where(undone, checked)
            .distinct()
        )
        for wish, number in Counter(row.wish for row in connection.execute(made)).items():
            mine = (wishes.c.turn_id == wish) & wishes.c.status.in_(CURRENT)
            left = {
                count.name: sa.case((count > number, count - number), else_=0)
                for count in (wishes.c.versions, wishes.c.in_vain)
            }
            connection.execute(wishes.update().where(mine).values(left))

    def turns_of_user(self, user: str | None, until: float = inf) -> list[str]:
        """The user's turns until then that have a sample, including turns pruned since; None: everybody's."""
        query = sa.select(samples.c.turn_id).where(*began(samples, user, until))
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def _release_since(self, connection: sa.Connection, scope: Scope, first: int) -> None:
        """Queue what these versions learned again, as recorded."""
        learned = samples.c.status.in_((TRAINED, CLAIMED)) | samples.c.reason.in_(GATE_REJECTIONS)
        mine = (samples.c.scope == scope) & (samples.c.step >= first) & learned & samples.c.data.is_not(None)
        rows = connection.execute(sa.select(samples.c.status, samples.c.reason).where(mine)).all()
        connection.execute(samples.update().where(mine).values(status=READY, reason=None, step=None))
        for (status, reason), number in Counter((row.status, row.reason) for row in rows).items():
            self._count(connection, status, reason, -number)
            self._count(connection, READY, None, number)

    def _erase_samples(self, connection: sa.Connection, turn_ids: Sequence[str]) -> None:
        mine = samples.c.turn_id.in_(turn_ids)
        rows = connection.execute(sa.select(samples.c.status, samples.c.reason).where(mine)).all()
        for row in rows:
            self._count(connection, row.status, row.reason, -1)
        connection.execute(samples.delete().where(mine))
        connection.execute(sample_turns.delete().where(sample_turns.c.sample.in_(turn_ids)))
