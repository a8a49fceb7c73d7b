"""Policy versions: their status, lineage, and which one serves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.content import to_json
from openclaw_rl.capture.samples import policies, samples, swaps
from openclaw_rl.types import BASE_VERSION, EVERYONE, Policy, Scope

#: Status of a sample that waits for a step.
READY = "ready"
_WAITS = (READY, "claimed")
TRAINING, CANDIDATE, SERVING, RETIRED, REJECTED = "training", "candidate", "serving", "retired", "rejected"


class Versions:
    """The table ``policies``, and the history of serving versions in ``swaps``."""

    def __init__(self, db: sa.Engine) -> None:
        self.db = db
        self.leads: Callable[[Scope], bool] = lambda scope: True
        """Whether this process trains a scope; if several hosts learn, this may take the scope's lease."""

    def serving(self, scope: Scope = EVERYONE) -> int:
        with self.db.connect() as connection:
            return self._serving(connection, scope)

    def _serving(self, connection: sa.Connection, scope: Scope) -> int:
        query = sa.select(policies.c.version).where(policies.c.status == SERVING, policies.c.scope == scope)
        return int(connection.execute(query).scalar() or BASE_VERSION)

    def serving_table(self) -> dict[Scope, int]:
        """Which version serves each scope; scopes not in it are served the base."""
        query = sa.select(policies.c.scope, policies.c.version).where(policies.c.status == SERVING)
        with self.db.connect() as connection:
            return {row.scope: row.version for row in connection.execute(query)}

    def scopes(self) -> list[Scope]:
        """Scopes that have a policy, or a sample that waits for a step; ``EVERYONE`` first."""
        ready = sa.select(samples.c.scope).where(samples.c.status == READY)
        query = sa.union(sa.select(policies.c.scope), ready)
        with self.db.connect() as connection:
            return [EVERYONE, *sorted(set(connection.scalars(query)) - {EVERYONE})]

    def waiting_scopes(self) -> list[Scope]:
        """Scopes with a sample that waits for a step."""
        with self.db.connect() as connection:
            return sorted(connection.scalars(self._waiting_scopes().distinct()))

    def _waiting_scopes(self) -> sa.Select[tuple[Scope]]:
        return sa.select(samples.c.scope).where(samples.c.status == READY)

    def idle_scopes(self, before: float) -> list[Scope]:
        """Single people's with a policy, in which nothing was said or made since, and no sample waits."""
        theirs = samples.c.scope == policies.c.scope
        busy = sa.exists().where(theirs, (samples.c.created_at >= before) | samples.c.status.in_(_WAITS))
        query = sa.select(policies.c.scope).where(policies.c.scope.startswith("user:"), ~busy)
        query = query.group_by(policies.c.scope).having(sa.func.max(policies.c.created_at) < before)
        with self.db.connect() as connection:
            return [scope for scope in connection.scalars(query) if self.leads(scope)]

    def lineage(self, version: int, scope: Scope = EVERYONE) -> list[int]:
        """A version and its ancestors, newest first; the last is the base."""
        with self.db.connect() as connection:
            return self._lineage(connection, version, scope)

    def _lineage(self, connection: sa.Connection, version: int, scope: Scope) -> list[int]:
        query = sa.select(policies.c.version, policies.c.parent).where(policies.c.scope == scope)
        parents = {row.version: row.parent or BASE_VERSION for row in connection.execute(query)}
        found = [version]
        while found[-1] in parents:
            found.append(parents[found[-1]])
        return found

    def served_s(self, scope: Scope = EVERYONE) -> dict[int, float]:
        """How long each version has served, in seconds."""
        query = sa.select(swaps.c.version, swaps.c.at).where(swaps.c.scope == scope).order_by(swaps.c.seq)
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        ends = [*(row.at for row in rows[1:]), time.time()]
        found: dict[int, float] = {}
        for row, end in zip(rows, ends, strict=False):
            found[row.version] = found.get(row.version, 0.0) + end - row.at
        return found

    def left_at(self, scope: Scope = EVERYONE) -> dict[int, float]:
        """When each version stopped serving; without those that serve or never did."""
        query = sa.select(swaps.c.version, swaps.c.at).where(swaps.c.scope == scope).order_by(swaps.c.seq)
        with self.db.connect() as connection:
            rows = connection.execute(query).all()
        found, serving = dict[int, float](), BASE_VERSION
        for row in rows:
            if row.version != serving:
                found[serving] = row.at
            found.pop(row.version, None)
            serving = row.version
        return found

    def num_between(self, one: int, other: int, scope: Scope = EVERYONE) -> int:
        """Steps between two versions: from one back to their common ancestor, and on to the other.

        Not the difference of their numbers: all scopes and rejected versions share one sequence.
        """
        ours, theirs = self.lineage(one, scope), self.lineage(other, scope)
        shared = next(version for version in ours if version in theirs)
        return ours.index(shared) + theirs.index(shared)

    def promote(self, version: int, why: str, scope: Scope = EVERYONE) -> None:
        """Serve this version to its scope from now on, whatever its status; ``why`` is stored with it."""
        with database.writing(self.db) as connection:
            policy = self._policy(connection, version)
            if version != BASE_VERSION and policy is None:
                raise ValueError(f"there is no policy version {version} to serve")
            if policy is not None and policy.status in (TRAINING, CANDIDATE):
                raise ValueError(f"policy version {version} is still being made; wait for its checks")
            if policy is not None and policy.scope != scope:
                raise ValueError(f"policy version {version} is for {policy.scope}, not for {scope}")
            if policy is not None:
                gate = {**policy.gate, "history": [*policy.gate.get("history", []), why]}
                self._update(connection, version, gate=to_json(gate))
            self._serve(connection, version, why, scope)

    def _serve(self, connection: sa.Connection, version: int, why: str, scope: Scope) -> None:
        connection.execute(swaps.insert().values(version=version, at=time.time(), why=why, scope=scope))
        connection.execute(
            policies.update()
            .where(policies.c.status == SERVING, policies.c.scope == scope)
            .values(status=RETIRED)
        )
        if version != BASE_VERSION:
            self._update(connection, version, status=SERVING, published_at=time.time())

    def _update(self, connection: sa.Connection, version: int, **values: object) -> None:
        connection.execute(policies.update().where(policies.c.version == version).values(**values))

    def policy(self, version: int) -> Policy | None:
        with self.db.connect() as connection:
            return self._policy(connection, version)

    def _policy(self, connection: sa.Connection, version: int) -> Policy | None:
        row = connection.execute(sa.select(policies).where(policies.c.version == version)).first()
        return None if row is None else _to_policy(row)

    def list_policies(self, limit: int = 1000, scope: Scope | None = EVERYONE) -> list[Policy]:
        """Newest first; ``scope`` None lists all of them."""
        query = sa.select(policies).order_by(policies.c.version.desc()).limit(limit)
        if scope is not None:
            query = query.where(policies.c.scope == scope)
        with self.db.connect() as connection:
            return [_to_policy(row) for row in connection.execute(query)]

    def unfinished(self) -> Policy | None:
        """A step that was started but not finished, in a scope that this process trains."""
        query = sa.select(policies).where(policies.c.status.in_((TRAINING, CANDIDATE)))
        with self.db.connect() as connection:
            rows = connection.execute(query.order_by(policies.c.version)).all()
        return next((_to_policy(row) for row in rows if self.leads(row.scope)), None)


def _to_policy(row: sa.Row[tuple[object, ...]]) -> Policy:
    values = dict(row._mapping)
    return Policy(**{**values, "metrics": json.loads(values["metrics"]), "gate": json.loads(values["gate"])})
