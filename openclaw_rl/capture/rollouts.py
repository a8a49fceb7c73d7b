"""Episodes in environments: their rewards, and complete groups.

A group is several attempts at one task. It is settled as a whole in one transaction, once every attempt has
its reward and every turn was judged: after a crash a group is either untouched or settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.events import REWARD, load_events
from openclaw_rl.capture.learn_ledger import LearnLedger, verdicts
from openclaw_rl.capture.samples import attempts, samples
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import (
    JUDGE_FAILED,
    Attempt,
    AttemptGroup,
    Json,
    Scope,
    SettledTurn,
    Step,
    Verdict,
    is_solved,
)

if TYPE_CHECKING:
    from openclaw_rl.capture.ledgers import Ledgers
    from openclaw_rl.capture.policy_ledger import PolicyLedger

#: After this many failures of the judge, a step is used without its verdict.
_MOST_TRIES = 3
_PAGE = 500
_CURSOR = "cursor_rewards"


class Rollouts:
    """The learn process's view of episodes. One writer; shares the ``PolicyLedger``'s database."""

    def __init__(self, serve_ledger: ServeLedger, learn_ledger: LearnLedger, policies: PolicyLedger) -> None:
        self._serve, self._learn, self._policies = serve_ledger, learn_ledger, policies
        self.db = policies.db
        self._of_session: dict[str, list[str]] = {}
        """The turns of unsettled attempts, by the turn that ended each: read once."""
        self._judged: set[str] = set()
        """Those of them that have a verdict."""

    def pull(self) -> None:
        """Import rewards that arrived since the last call, each once."""
        with self.db.connect() as connection:
            last = int(self._learn.marks(connection)[_CURSOR])
        events = schema.events
        with self._serve.db.connect() as connection:
            found = load_events(connection, (events.c.seq > last) & (events.c.kind == REWARD), _PAGE)
        if not found:
            return
        with database.writing(self.db) as connection:
            for event in found:
                turn, said = self._serve.turn_summary(event.turn_id), event.data
                if turn is None:
                    continue
                known = sa.select(attempts.c.turn_id).where(attempts.c.turn_id == event.turn_id)
                if connection.execute(known).first() is None:
                    connection.execute(
                        attempts.insert().values(
                            turn_id=event.turn_id, scope=said["scope"], group_id=said["group"],
                            group_size=said["size"], reward=said["reward"], failure=said["failure"],
                            policy_version=turn["policy_version"], created_at=event.at, settled=0,
                        )
                    )  # fmt: skip
            self._learn.set_mark(connection, _CURSOR, found[-1].seq)

    def complete(self, limit: int) -> list[AttemptGroup]:
        """Groups whose attempts have all ended and were judged, oldest first."""
        waiting = sa.select(
            attempts.c.scope, attempts.c.group_id, sa.func.min(attempts.c.created_at).label("since")
        )
        waiting = waiting.where(attempts.c.settled == 0).group_by(attempts.c.scope, attempts.c.group_id)
        waiting = waiting.having(sa.func.count() >= sa.func.max(attempts.c.group_size))
        with self.db.connect() as connection:
            rows = connection.execute(waiting.order_by("since")).all()
        found = (self._group(row.scope, row.group_id) for row in rows)
        return [group for group in found if group is not None][:limit]

    def _group(self, scope: Scope, group_id: str) -> AttemptGroup | None:
        """None while one of its turns waits for a verdict."""
        query = sa.select(attempts).where(attempts.c.scope == scope, attempts.c.group_id == group_id)
        with self.db.connect() as connection:
            rows = connection.execute(query.order_by(attempts.c.created_at, attempts.c.turn_id)).all()
        turns = {row.turn_id: self._known_turns(row.turn_id) for row in rows}
        if not all(self._is_judged(turn_id) for ids in turns.values() for turn_id in ids):
            return None
        made = [
            Attempt(row.turn_id, row.reward, row.failure, self._steps(turns[row.turn_id])) for row in rows
        ]
        return AttemptGroup(group_id, scope, tuple(made))

    def _known_turns(self, last: str) -> list[str]:
        """Groups that wait are looked at again and again."""
        if last not in self._of_session:
            self._of_session[last] = self._turns_of(last)
        return self._of_session[last]

    def _turns_of(self, last: str) -> list[str]:
        """All turns of the session that ended with this one, in order."""
        turns, mine = schema.turns, schema.turns.alias()
        session = sa.select(mine.c.session).where(mine.c.id == last).scalar_subquery()
        counts = (turns.c.kind != "side") & (turns.c.finish_reason != "cancelled")
        query = sa.select(turns.c.id).where(turns.c.session == session, counts).order_by(turns.c.seq)
        with self._serve.db.connect() as connection:
            return list(connection.scalars(query))

    def _is_judged(self, turn_id: str) -> bool:
        if turn_id in self._judged or self._learn.verdict(turn_id) is not None:
            self._judged.add(turn_id)
            return True
        task = self._learn.task(turn_id)
        if task is None or task["attempts"] < _MOST_TRIES:
            return False
        self._learn.settle(
            turn_id, Verdict(0, 0.0, JUDGE_FAILED, reason=f"the judge failed: {task['error']}")
        )
        return True

    def _steps(self, turn_ids: Sequence[str]) -> tuple[Step, ...]:
        found = (self._policies.judged(turn_id) for turn_id in turn_ids)
        return tuple(Step(*judged) for judged in found if judged is not None)

    def settle(self, group: AttemptGroup, turns: Sequence[SettledTurn]) -> None:
        """Store a group's outcome: examples, or for each turn the reason why it has none."""
        ended = [attempt.turn_id for attempt in group.attempts]
        with database.writing(self.db) as connection:
            for turn in turns:
                self._policies.store(connection, turn)
            connection.execute(attempts.update().where(attempts.c.turn_id.in_(ended)).values(settled=1))
        for turn_id in ended:
            self._judged.difference_update(self._of_session.pop(turn_id, []))


def num_unsettled(ledgers: Ledgers, scope: Scope) -> int:
    """Attempts with a reward that were not yet compared with their group, whether or not the learner has
    read of them: during a step it reads nothing."""
    waits = sa.select(sa.func.count()).where(attempts.c.scope == scope, attempts.c.settled == 0)
    with ledgers.policies.db.connect() as connection:
        known = int(connection.scalar(waits) or 0)
        last = int(ledgers.learn.marks(connection)[_CURSOR])
    events = schema.events
    with ledgers.serve.db.connect() as connection:
        unread = load_events(connection, (events.c.seq > last) & (events.c.kind == REWARD), _PAGE)
    return known + sum(1 for event in unread if event.data["scope"] == scope)


def view_environments(policies: PolicyLedger, only: Scope | None, most: int = 1000) -> list[Json]:
    """Results of the newest attempts in each environment, by version, and failures by cause."""
    found = []
    with policies.db.connect() as connection:
        known = sorted(connection.scalars(sa.select(attempts.c.scope).distinct()))
        for scope in known if only is None else [only]:
            query = sa.select(attempts).where(attempts.c.scope == scope)
            rows = connection.execute(query.order_by(attempts.c.created_at.desc()).limit(most)).all()
            unjudged = sa.select(sa.func.count(verdicts.c.turn_id.distinct())).join(
                samples, samples.c.turn_id == verdicts.c.turn_id
            )
            unjudged = unjudged.where(samples.c.scope == scope, verdicts.c.source == JUDGE_FAILED)
            judge = connection.scalar(unjudged) or 0
            found.append({"scope": scope, **_summary(rows), "unjudged_steps": judge})
    return found


def view_attempts(ledgers: Ledgers, scope: Scope, limit: int, before: float | None = None) -> list[Json]:
    """The newest attempts in an environment, or the newest before a time."""
    query = sa.select(attempts).where(attempts.c.scope == scope)
    query = query if before is None else query.where(attempts.c.created_at < before)
    with ledgers.policies.db.connect() as connection:
        rows = connection.execute(query.order_by(attempts.c.created_at.desc()).limit(limit)).all()
    found = []
    for row in rows:
        if (turn := ledgers.serve.turn_summary(row.turn_id)) is not None:
            found.append(
                {
                    "session_id": turn["session_id"],
                    "group": row.group_id,
                    "reward": row.reward,
                    "failure": _failure(row),
                    "policy_version": row.policy_version,
                    "at": row.created_at,
                }
            )
    return found


def _failure(row: Any) -> str:
    """What failed; empty if the task was solved."""
    return str(row.failure) or ("" if is_solved(row.reward) else "model")


def _summary(rows: Sequence[Any]) -> Json:
    by_version: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    failures: dict[str, int] = defaultdict(int)
    for row in rows:
        if failure := _failure(row):
            failures[failure] += 1
        if row.reward is not None:
            by_version[row.policy_version][0] += is_solved(row.reward)
            by_version[row.policy_version][1] += 1
    versions = [{"version": v, "solved": solved, "of": of} for v, (solved, of) in sorted(by_version.items())]
    known = {name: sum(each[name] for each in versions) for name in ("solved", "of")}
    return {"attempts": len(rows), **known, "failures": dict(failures), "versions": versions}
