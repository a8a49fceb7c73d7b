"""Steps: which samples each one takes, and what happens to them with its version.

A step claims its samples and its version number in one transaction before it starts, so after a crash the
very same step is resumed, and a sample is never in two steps.
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
#: A batch does not grow further with more users than this.
_MOST_USERS = 8


#: One user's largest share of a step's samples, if others' samples are waiting, too.
MOST_SHARE = 2 / 3
#: A step's samples are chosen among this many times as many waiting ones.
_LOOK = 4


def fair_share(waiting: Sequence[tuple[str, str]], limit: int) -> list[str]:
    """The first ``limit`` of (turn, user), in order, with no user above ``MOST_SHARE``."""
    most = limit if len({user for _, user in waiting}) < 2 else math.ceil(MOST_SHARE * limit)
    taken: Counter[str] = Counter()
    chosen: list[str] = []
    for turn_id, user in waiting:
        if len(chosen) < limit and taken[user] < most:
            chosen.append(turn_id)
            taken[user] += 1
    return chosen


class Steps(Shares):
    """Samples that wait for a step, and those that a step has claimed."""

    holds_scope: Callable[[sa.Connection, Scope], bool] = staticmethod(lambda connection, scope: True)
    """Whether this host holds the scope's lease; checked inside the caller's transaction."""

    def waiting(self, scope: Scope = EVERYONE) -> tuple[int, float, float | None]:
        """Samples that wait for a step: their number, total strength, and the oldest one's time."""
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
        """Size of the next batch: ``batch_size``, plus half as many for every further user in it.

        Users want different things; a step on one user's samples undoes what the others taught.
        Counted in the order of the samples, so that the result does not depend on when it is called.
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
        """Claim the oldest samples for a new version, and choose up to ``replay`` earlier ones to replay.

        In the order of their turns: a turn that is being judged for the first time holds later ones back,
        so that the contents of a batch do not depend on the judge's speed.
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
        """Reserve a version number for imported weights; they never serve unless ``reserved`` is called."""
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
        """The imported weights are complete; the version waits for the gate."""
        with database.writing(self.db) as connection:
            self._update(connection, version, status=CANDIDATE, gate="{}")

    def _next_version(self, connection: sa.Connection | None = None) -> int:
        newest = sa.select(sa.func.max(policies.c.version))
        if connection is not None:
            return int(connection.execute(newest).scalar() or 0) + 1
        with self.db.connect() as own:
            return self._next_version(own)

    def items(self, version: int) -> list[Example]:
        """A step's examples, in the order of their turns.

        Without those whose turn was pruned, and those on requests that a user excluded since.
        """
        query = (
            sa.select(samples.c.turn_id, samples.c.score, samples.c.data)
            .where(samples.c.step == version, samples.c.status != EXCLUDED, samples.c.data.is_not(None))
            .order_by(samples.c.created_at, samples.c.turn_id)
        )
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        return self._wanted(self._examples(rows))

    def num_pruned(self, version: int) -> int:
        """Samples that a version was trained on, and whose contents are gone."""
        mine = (samples.c.step == version) & (samples.c.status == TRAINED) & samples.c.data.is_(None)
        with self.db.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).where(mine)) or 0)

    def claimed(self, version: int) -> list[str]:
        query = sa.select(samples.c.turn_id).where(samples.c.step == version, samples.c.status == CLAIMED)
        with self.db.connect() as connection:
            return list(connection.scalars(query))

    def take_out_excluded(self, version: int) -> list[str]:
        """Remove claimed turns that a user excluded since; the step goes on without them.

        They no longer belong to the step, so that the user can include them again.
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
        """Users whose complaints a version was trained on."""
        query = sa.select(samples.c.user).where(samples.c.step == version, samples.c.score < 0).distinct()
        with self.db.connect() as connection:
            return sorted(connection.scalars(query))

    def drop(self, version: int, turn_ids: Sequence[str], reason: str) -> None:
        """Exclude samples that cannot be trained on, such as those whose turn was pruned or is too old."""
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
        """Undo the claim of a step that could not start: its samples wait again, and its number is free."""
        with database.writing(self.db) as connection:
            mine = (samples.c.step == version) & (samples.c.status == CLAIMED)
            done = connection.execute(samples.update().where(mine).values(status=READY, step=None))
            connection.execute(policies.delete().where(policies.c.version == version))
            self._count(connection, CLAIMED, None, -done.rowcount)
            self._count(connection, READY, None, done.rowcount)

    def failed(self, version: int, problem: str) -> int:
        """Record that a step failed; returns how often it has, 0 if there is no such step."""
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
            # Unless it was undone during training.
            still = (policies.c.version == version) & (policies.c.status == TRAINING)
            policy = self._policy(connection, version)
            # What it replayed stays known: the step may have to be repeated.
            planned = {
                name: value for name, value in (policy.metrics if policy else {}).items() if name == "replay"
            }
            done = (
                policies.update()
                .where(still)
                .values(status=CANDIDATE, metrics=to_json({**metrics, **planned}))
            )
            connection.execute(done)

    def reject(self, version: int, gate: Json, reason: str = GATE_REJECTED) -> None:
        """The version never serves; its samples are used up nevertheless, with ``reason``."""
        with database.writing(self.db) as connection:
            if not self._is_undone(connection, version):
                self._update(connection, version, status=REJECTED, gate=to_json(gate))
            self._finish_samples(connection, version, EXCLUDED, reason)

    def publish(self, version: int, gate: Json) -> bool:
        """Serve a candidate from now on; False if another version was promoted meanwhile."""
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
        """Whether something it learned was forgotten since it was started."""
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
