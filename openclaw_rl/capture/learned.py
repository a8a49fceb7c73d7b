"""Learning in numbers: verdicts over turns, swaps, and how a swap affected the replies around it.

All of it is computed by the database from rows that name their turns; no separate statistics are stored.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import samples, swaps
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import EVERYONE, Json, Scope

#: Points of a curve: about as many as a screen can show.
_POINTS = 120
_MAX_SWAPS = 500
_MAX_ROWS = 5000
#: Judged turns in a curve.
_MAX_JUDGED = 12_000
#: Replies that began this long before or after a swap are counted …
_AROUND_S = 60.0
#: … and compared with those of this long before it.
_USUAL_S = 600.0
_TRAFFIC_S = 60.0


def view_rewards(policy_ledger: PolicyLedger, user: str | None = None) -> Json:
    """The last judged turns, in at most 120 groups of equal size: mean verdict, and counts by verdict."""
    judged = sorted(_judged(policy_ledger, user))
    size = max(1, -(-len(judged) // _POINTS))
    points = [_point(first, judged[first : first + size]) for first in range(0, len(judged), size)]
    return {"turns": len(judged), "turns_per_point": size, "points": points}


def _judged(policy_ledger: PolicyLedger, user: str | None) -> list[tuple[float, int, int]]:
    """Time, version and score of judged turns: read from an index alone, and only as many as a curve needs.

    A sample is made some time after its verdict; until then the verdict's own score is used.
    """
    columns = (samples.c.created_at, samples.c.policy_version, samples.c.score)
    query = sa.select(*columns).order_by(samples.c.created_at.desc()).limit(_MAX_JUDGED)
    query = query if user is None else query.where(samples.c.user == user)
    later, outdated = policy_ledger.unsettled(user), Counter[tuple[float, int, int]]()
    with policy_ledger.db.connect() as connection:
        settled = Counter(tuple(row) for row in connection.execute(query))
        for batch in batched(later):
            known = sa.select(*columns).where(samples.c.turn_id.in_(batch))
            outdated.update(tuple(row) for row in connection.execute(known))
    return [*(settled - outdated).elements(), *later.values()]


def _point(first: int, turns: list[tuple[float, int, int]]) -> Json:
    scores = [score for _, _, score in turns]
    up, down = sum(score > 0 for score in scores), sum(score < 0 for score in scores)
    return {
        "first": first,
        "turns": len(turns),
        "reward": sum(scores) / len(scores),
        "up": up,
        "down": down,
        "satisfaction": up / (up + down) if up + down else None,
        "from_at": turns[0][0],
        "to_at": turns[-1][0],
        "version": max(version for _, version, _ in turns),
    }


def view_swaps(policy_ledger: PolicyLedger, limit: int = _MAX_SWAPS, scope: Scope = EVERYONE) -> list[Json]:
    """Which version served a scope from when, oldest first."""
    query = sa.select(swaps).where(swaps.c.scope == scope).order_by(swaps.c.seq.desc()).limit(limit)
    with policy_ledger.db.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(query)][::-1]


def view_step_turns(
    policy_ledger: PolicyLedger, version: int, user: str | None, limit: int = 200
) -> list[Json]:
    """The samples of a step, in the order of their turns."""
    columns = (samples.c.turn_id, samples.c.score, samples.c.status, samples.c.strength)
    query = sa.select(*columns).where(samples.c.step == version)
    if user is not None:
        query = query.where(samples.c.user == user)
    with policy_ledger.db.connect() as connection:
        rows = connection.execute(query.order_by(samples.c.created_at).limit(limit))
        return [dict(row._mapping) for row in rows]


def view_traffic(serve_ledger: ServeLedger, now: float, user: str | None = None) -> Json:
    """Rates of finished replies over the last minute."""
    turns = schema.turns
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(turns.c.completion_tokens), 0))
    query = query if user is None else query.where(turns.c.user == user)
    with serve_ledger.db.connect() as connection:
        number, tokens = connection.execute(query.where(turns.c.created_at > now - _TRAFFIC_S)).one()
    return {
        "window_s": _TRAFFIC_S,
        "requests_per_s": number / _TRAFFIC_S,
        "tokens_per_s": int(tokens) / _TRAFFIC_S,
    }


def tokens_since(serve_ledger: ServeLedger, user: str, since: float) -> int:
    """Tokens in a user's prompts and replies."""
    turns = schema.turns
    query = sa.select(sa.func.sum(turns.c.prompt_tokens + turns.c.completion_tokens))
    with serve_ledger.db.connect() as connection:
        mine = query.where(turns.c.user == user, turns.c.created_at >= since)
        return int(connection.execute(mine).scalar() or 0)


class SwapWatch:
    """How the last swap affected the replies around it; cached once the result is final."""

    def __init__(
        self, serve_ledger: ServeLedger, policy_ledger: PolicyLedger, scope: Scope = EVERYONE
    ) -> None:
        self._serve_ledger, self._policy_ledger, self._scope = serve_ledger, policy_ledger, scope
        self._known: Json | None = None

    def last(self, now: float) -> Json | None:
        last = view_swaps(self._policy_ledger, 1, self._scope)
        if not last:
            return None
        swap, known = last[0], self._known
        if known is not None and known["seq"] == swap["seq"]:
            return known
        seen = {**swap, **self._around(swap["at"])}
        if now > swap["at"] + 2 * _AROUND_S:
            self._known = seen
        return seen

    def _around(self, at: float) -> Json:
        turns = schema.turns
        columns = (turns.c.created_at, turns.c.finish_reason, turns.c.timings)
        around = turns.c.created_at.between(at - _USUAL_S, at + _AROUND_S)
        query = (
            sa.select(*columns)
            .where(around, turns.c.scope == self._scope)
            .order_by(turns.c.created_at.desc())
            .limit(_MAX_ROWS)
        )
        with self._serve_ledger.db.connect() as connection:
            rows = connection.execute(query).all()
        usual = [_first_token_s(row) for row in rows if row.created_at < at]
        near = [row for row in rows if abs(row.created_at - at) <= _AROUND_S]
        bound = 2 * statistics.median(usual) + 0.25 if usual else None
        after = [_first_token_s(row) for row in near if row.created_at >= at]
        return {
            "around_s": _AROUND_S,
            "replies": len(near),
            "failed": sum(row.finish_reason == "cancelled" for row in near),
            "delayed": None if bound is None else sum(value > bound for value in after),
            "delayed_above_s": bound,
        }


def _first_token_s(row: Any) -> float:
    return float(json.loads(row.timings).get("first_token_s", 0.0))
