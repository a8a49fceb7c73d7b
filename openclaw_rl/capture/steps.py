"""Steps: which samples each takes, and what becomes of them with its version.

A step claims its samples and its version number in one transaction before it starts, so a process that
dies finds the very same step again, and a sample is never in two.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.decided import EXCLUDED as EXCLUDED_BY_PERSON
from openclaw_rl.capture.learn_ledger import tasks
from openclaw_rl.capture.samples import GATE_REJECTED, TRAINED, policies, samples
from openclaw_rl.capture.shares import Shares
from openclaw_rl.capture.versions import CANDIDATE, READY, REJECTED, TRAINING
from openclaw_rl.types import EVERYONE, Example, Json, Policy, Scope

EXCLUDED, CLAIMED = "excluded", "claimed"
PASSED = "passed its checks"
NOT_WANTED = EXCLUDED_BY_PERSON.reason
#: Of more people at once, a step hears as many samples as of this many.
_MOST_USERS = 8


#: Of a step's samples, one person has at most so many where others wait, too.
MOST_SHARE = 2 / 3
#: Batches' worth of waiting samples among which those are looked for.
_LOOK = 4


def fair_share(waiting: Sequence[tuple[str, str]], limit: int) -> list[str]:
    """The first ``limit`` of (turn, user), in order, without anybody having more than their share."""
    most = limit if len({user for _, user in waiting}) < 2 else math.ceil(MOST_SHARE * limit)
    taken: Counter[str] = Counter()
    chosen: list[str] = []
    for turn_id, user in waiting:
        if len(chosen) < limit and taken[user] < most:
            chosen.append(turn_id)
            taken[user] += 1
    return chosen


class Steps(Shares):
    """The samples that wait, and those that a step has claimed."""

    holds_scope: Callable[[sa.Connection, Scope], bool] = staticmethod(lambda connection, scope: True)
    """Whether no other host trains this scope, as certain as the transaction it is asked in."""

    def waiting(self, scope: Scope = EVERYONE) -> tuple[int, float, float | None]:
        """Samples that wait for a step: how many, how strong together, and since when."""
        if self._is_guarded(scope):
            with self.db.connect() as connection:
                rows = self._ready(connection, scope)
            oldest = min((row.created_at for row in rows), default=None)
            return len(rows), sum(row.strength for row in rows), oldest
        query = sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(samples.c.strength), 0.0),
            sa.func.min(samples.c.created_at),
        ).where(samples.c.status == READY, samples.c.scope == scope)
        with self.db.connect() as connection:
            number, strength, oldest = connection.execute(query).one()
        return int(number), float(strength), oldest

    def full_batch(self, batch_size: int, scope: Scope = EVERYONE) -> int:
        """How many samples make the next batch: ``batch_size``, and half as many for everybody else in it.

        People want different things; a step that heard only one of them undoes what the others taught.
        Counted along the order of the samples, so that it does not depend on when somebody looks.
        """
        users: set[str] = set()
        more = (batch_size + 1) // 2
        with self.db.connect() as connection:
            for number, row in enumerate(self._ready(connection, scope, _MOST_USERS * batch_size), 1):
                users.add(row.user)
                if number >= batch_size + more * (len(users) - 1):
                    return number
        return batch_size + more * (min(_MOST_USERS, max(1, len(users))) - 1)

    def claim(
        self, limit: int, parent: int, config_hash: str, replay: int = 0, scope: Scope = EVERYONE
    ) -> Policy | None:
        """Take the oldest samples for a new version, and choose up to ``replay`` earlier ones to hear again.

        In the order of their turns: one that is being judged for the first time holds later ones back,
        so that what a batch holds does not depend on who was judged how fast.
        """
        planned = (
            {"replay": self._accepted(replay, scope, seed=len(self.lineage(parent, scope)))} if replay else {}
        )
        with database.writing(self.db) as connection:
            if not self.holds_scope(connection, scope):
                return None
            held = connection.execute(
                sa.select(sa.func.min(tasks.c.created_at)).where(
                    tasks.c.ready.is_not(None), tasks.c.attempts == 0
                )
            ).scalar()
            ready = self._ready(connection, scope, _LOOK * limit, before=held)
            waiting = [(row.turn_id, row.user) for row in ready]
            ids = fair_share(waiting, limit)
            if not ids or (held is not None and len(waiting) < limit):
                return None
            version = self._next_version(connection)
            connection.execute(
                policies.insert().values(
                    version=version, parent=parent, status=TRAINING, created_at=time.time(),
                    num_samples=len(ids), config_hash=config_hash, metrics=to_json(planned), gate="{}",
                    scope=scope,
                )
            )  # fmt: skip
            mine = samples.c.turn_id.in_(ids)
            connection.execute(samples.update().where(mine).values(status=CLAIMED, step=version))
            self._count(connection, READY, None, -len(ids))
            self._count(connection, CLAIMED, None, len(ids))
            return self._policy(connection, version)

    def reserve(self, parent: int, metrics: Json, scope: Scope = EVERYONE) -> int:
        """A number for weights that come from elsewhere; they never serve unless ``reserved`` says so."""
        with database.writing(self.db) as connection:
            version = self._next_version(connection)
            connection.execute(
                policies.insert().values(
                    version=version, parent=parent, status=REJECTED, created_at=time.time(), num_samples=0,
                    config_hash="imported", metrics=to_json(metrics), scope=scope,
                    gate=to_json({"passed": False, "reason": "its import was not finished", "checks": []}),
                )
            )  # fmt: skip
            return version

    def reserved(self, version: int) -> None:
        """Its weights are there: it waits for the gate."""
        with database.writing(self.db) as connection:
            self._update(connection, version, status=CANDIDATE, gate="{}")

    def _next_version(self, connection: sa.Connection | None = None) -> int:
        newest = sa.select(sa.func.max(policies.c.version))
        if connection is not None:
            return int(connection.execute(newest).scalar() or 0) + 1
        with self.db.connect() as own:
            return self._next_version(own)

    def items(self, version: int) -> list[Example]:
        """What a step was given, in the order of the turns.

        Those whose turn was pruned are missing, and those on requests that a person excluded since.
        """
        query = (
            sa.select(samples.c.turn_id, samples.c.score, samples.c.data)
            .where(samples.c.step == version, samples.c.status != EXCLUDED, samples.c.data.is_not(None))
            .order_by(samples.c.created_at, samples.c.turn_id)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return self._wanted(self._examples(rows))

    def claimed(self, version: int) -> list[str]:
        query = sa.select(samples.c.turn_id).where(samples.c.step == version, samples.c.status == CLAIMED)
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def take_out_excluded(self, version: int) -> list[str]:
        """Claimed turns that a person excluded since: the step goes on without them.

        They are free of it, so that they can be taken back in.
        """
        out = [turn_id for turn_id in self.claimed(version) if not self._still_counts(turn_id)]
        with database.writing(self.db) as connection:
            for turn_id in out:
                self._set_aside(connection, turn_id, version, NOT_WANTED, step=None)
        return out

    def foreign(self, version: int) -> list[str]:
        """Claimed turns that another model answered."""
        mine = (samples.c.step == version) & (samples.c.status == CLAIMED)
        with self.db.connect() as connection:
            return list(connection.scalars(sa.select(samples.c.turn_id).where(mine, ~self._is_own())))

    def users_of(self, version: int) -> list[str]:
        """Whose complaints a version was made of."""
        query = sa.select(samples.c.user).where(samples.c.step == version, samples.c.score < 0).distinct()
        with self.db.connect() as connection:
            return sorted(connection.scalars(query))

    def drop(self, version: int, turn_ids: Sequence[str], reason: str) -> None:
        """Samples that cannot be trained after all, such as those whose turn was pruned or is too old."""
        with database.writing(self.db) as connection:
            for turn_id in turn_ids:
                self._set_aside(connection, turn_id, version, reason, step=version)

    def _set_aside(
        self, connection: sa.Connection, turn_id: str, version: int, reason: str, step: int | None
    ) -> None:
        mine = (samples.c.turn_id == turn_id) & (samples.c.step == version) & (samples.c.status == CLAIMED)
        done = connection.execute(
            samples.update().where(mine).values(status=EXCLUDED, reason=reason, step=step)
        )
        if done.rowcount:
            self._count(connection, CLAIMED, None, -1)
            self._count(connection, EXCLUDED, reason, 1)

    def release(self, version: int) -> None:
        """A step that could not even begin: its samples wait again, and its number is free."""
        with database.writing(self.db) as connection:
            mine = (samples.c.step == version) & (samples.c.status == CLAIMED)
            done = connection.execute(samples.update().where(mine).values(status=READY, step=None))
            connection.execute(policies.delete().where(policies.c.version == version))
            self._count(connection, CLAIMED, None, -done.rowcount)
            self._count(connection, READY, None, done.rowcount)

    def failed(self, version: int, problem: str) -> int:
        """A step broke; how often it has, 0 if there is no such step."""
        with database.writing(self.db) as connection:
            if (policy := self._policy(connection, version)) is None:
                return 0
            failures = int(policy.metrics.get("failures", 0)) + 1
            metrics = {**policy.metrics, "failures": failures, "problem": problem}
            self._update(connection, version, metrics=to_json(metrics))
            return failures

    def trained(self, version: int, metrics: Json) -> None:
        """The step is done and saved; its version waits for the gate."""
        with database.writing(self.db) as connection:
            # Not if it was undone while it was being made.
            still = (policies.c.version == version) & (policies.c.status == TRAINING)
            done = policies.update().where(still).values(status=CANDIDATE, metrics=to_json(metrics))
            connection.execute(done)

    def reject(self, version: int, gate: Json, reason: str = GATE_REJECTED) -> None:
        """The version never serves; its samples are used up all the same, for ``reason``."""
        with database.writing(self.db) as connection:
            if not self._is_undone(connection, version):
                self._update(connection, version, status=REJECTED, gate=to_json(gate))
            self._finish_samples(connection, version, EXCLUDED, reason)

    def publish(self, version: int, gate: Json) -> bool:
        """Serve a candidate from now on; False if somebody chose another version meanwhile."""
        with database.writing(self.db) as connection:
            policy = self._policy(connection, version)
            assert policy is not None
            if self._is_undone(connection, version):
                return False
            if self._serving(connection, policy.scope) != policy.parent:
                problem = {
                    **gate,
                    "passed": False,
                    "reason": "the version it was trained from no longer serves",
                }
                self._update(connection, version, status=REJECTED, gate=to_json(problem))
                self._finish_samples(connection, version, EXCLUDED, GATE_REJECTED)
                return False
            self._update(connection, version, gate=to_json(gate))
            self._serve(connection, version, PASSED, policy.scope)
            self._finish_samples(connection, version, TRAINED, None)
            return True

    def _is_undone(self, connection: sa.Connection, version: int) -> bool:
        """Something that it learned was forgotten since it was begun."""
        policy = self._policy(connection, version)
        return policy is not None and policy.status not in (TRAINING, CANDIDATE)

    def _finish_samples(
        self, connection: sa.Connection, version: int, status: str, reason: str | None
    ) -> None:
        done = connection.execute(
            samples.update()
            .where(samples.c.step == version, samples.c.status == CLAIMED)
            .values(status=status, reason=reason)
        )
        self._count(connection, CLAIMED, None, -done.rowcount)
        self._count(connection, status, reason, done.rowcount)
