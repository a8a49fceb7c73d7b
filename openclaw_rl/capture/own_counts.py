"""The funnel of one person: counted from their own rows, as ``inspect.view_counts`` keeps everybody's.

And how many conversations each person had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.inspect import view_stages
from openclaw_rl.capture.learn_ledger import tasks, verdicts
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.samples import TRAINED, samples
from openclaw_rl.capture.steps import CLAIMED
from openclaw_rl.capture.unjudged import COUNTERS, count_left_out
from openclaw_rl.capture.versions import READY
from openclaw_rl.types import Json


def view_own_counts(ledgers: Ledgers, user: str) -> Json:
    turns, sessions = schema.turns, schema.sessions
    with ledgers.serve.db.connect() as connection:
        number, num_sessions = (
            int(connection.execute(sa.select(sa.func.count()).where(table.c.user == user)).scalar_one())
            for table in (turns, sessions)
        )
        left_out = count_left_out(connection, turns.c.user == user)
    by_status, reasons = _settled(ledgers, user)
    reasons.update({reason: left_out[counter] for reason, counter in COUNTERS.items()})
    queue, failed = _waiting(ledgers, user)
    states = {
        "judged": _num_judged(ledgers, user),
        "unjudged": failed,
        "sampled": by_status[READY] + by_status[CLAIMED],
        "trained": by_status[TRAINED],
        "excluded": reasons.total(),
    }
    states = {"waiting": max(0, number - sum(states.values())), **states}
    return {
        "sessions": num_sessions,
        "turns": number,
        "by_state": states,
        "stages": view_stages(number, states, reasons, queue - failed),
        "by_reason": {reason: n for reason, n in reasons.items() if n},
        "unread": 0,
        "judge_queue": queue,
        "judge_due": 0,
    }


def count_sessions(ledgers: Ledgers) -> dict[str, int]:
    """Everybody's conversations, by person."""
    user = schema.sessions.c.user
    with ledgers.serve.db.connect() as connection:
        found = connection.execute(sa.select(user, sa.func.count()).group_by(user))
        return {name: int(number) for name, number in found}


def _settled(ledgers: Ledgers, user: str) -> tuple[Counter[str], Counter[str]]:
    """Samples by status, and by reason of exclusion; the judge's own reason if it gave one."""
    reason = sa.func.coalesce(samples.c.reason, sa.case((~verdicts.c.trainable, verdicts.c.reason)))
    query = (
        sa.select(samples.c.status, reason, sa.func.count())
        .outerjoin(verdicts, verdicts.c.seq == samples.c.verdict)
        .where(samples.c.user == user)
        .group_by(samples.c.status, reason)
    )
    by_status, reasons = Counter[str](), Counter[str]()
    with ledgers.policies.db.connect() as connection:
        for status, why, count in connection.execute(query):
            by_status[status] += count
            if why is not None and status not in (READY, CLAIMED, TRAINED):
                reasons[why] += count
    return by_status, reasons


def _num_judged(ledgers: Ledgers, user: str) -> int:
    """Turns with a verdict and no sample yet."""
    judged = ledgers.policies.unsettled(user)
    with ledgers.policies.db.connect() as connection:
        known = {
            turn_id
            for batch in batched(judged)
            for turn_id in connection.scalars(
                sa.select(samples.c.turn_id).where(samples.c.turn_id.in_(batch))
            )
        }
    return len(judged.keys() - known)


def _waiting(ledgers: Ledgers, user: str) -> tuple[int, int]:
    """How many turns are in the judge's queue, and on how many of them it has failed."""
    with ledgers.learn.db.connect() as connection:
        query = sa.select(tasks.c.turn_id, tasks.c.attempts).where(tasks.c.ready.is_not(None))
        attempts = {row.turn_id: row.attempts for row in connection.execute(query)}
    mine = _of_user(ledgers, attempts, user)
    return len(mine), sum(attempts[turn_id] > 0 for turn_id in mine)


def _of_user(ledgers: Ledgers, turn_ids: Collection[str], user: str) -> list[str]:
    turns = schema.turns
    with ledgers.serve.db.connect() as connection:
        return [
            turn_id
            for batch in batched(turn_ids)
            for turn_id in connection.scalars(
                sa.select(turns.c.id).where(turns.c.id.in_(batch), turns.c.user == user)
            )
        ]
