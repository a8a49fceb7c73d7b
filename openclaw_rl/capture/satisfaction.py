"""Users' satisfaction with replies, by session and by the version that answered.

Only the first reply of a session counts: later ones may have a complaint in their context. A reply is good or
bad according to its verdict; neutral and excluded ones are ignored. A reply's score is that of the verdict
that counts (``LearnLedger.scores``), as in every other view.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.rows import load_bodies
from openclaw_rl.capture.samples import samples
from openclaw_rl.messages import NOTE
from openclaw_rl.types import Json

Rated = Literal["good", "bad"]
#: How many of the newest sessions are read.
_MOST = 2000
_LAST = 5


def view_first_replies(ledgers: Ledgers, user: str | None = None) -> Json:
    """First replies by the version that answered, and the last five.

    Those with a note in their prompt are counted by themselves: they show what the note does.
    """
    turns = schema.turns
    query = sa.select(turns.c.id, turns.c.policy_version, turns.c.params).where(
        turns.c.kind != "side", turns.c.continues.is_(None)
    )
    query = query if user is None else query.where(turns.c.user == user)
    with ledgers.serve.db.connect() as connection:
        first = connection.execute(query.order_by(turns.c.seq.desc()).limit(_MOST)).all()
    scores = ledgers.learn.scores([row.id for row in first])
    clear = [(row, scores[row.id]) for row in first if scores.get(row.id)]
    with ledgers.serve.db.connect() as connection:
        params = load_bodies(connection, {row.params for row, _ in clear})
    noted = {key for key, body in params.items() if NOTE in json.loads(body)}
    by_itself = [(row.policy_version, score) for row, score in clear if row.params not in noted]
    good = Counter(version for version, score in by_itself if score > 0)
    counted = Counter(version for version, _ in by_itself)
    return {
        "versions": [{"version": v, "good": good[v], "of": counted[v]} for v in sorted(counted)],
        "with_note": _share([score for row, score in clear if row.params in noted]),
        "last": _share([score for _, score in clear[:_LAST]]),
    }


def _share(scores: Sequence[int]) -> Json:
    return {"good": sum(score > 0 for score in scores), "of": len(scores)}


def session_scores(ledgers: Ledgers, session_ids: Sequence[str]) -> dict[str, list[int | None]]:
    """The score of each reply of these sessions, in order; None if it has no verdict."""
    turns, sessions = schema.turns, schema.sessions
    query = sa.select(sessions.c.id.label("session"), turns.c.id).join(
        sessions, sessions.c.seq == turns.c.session
    )
    found: dict[str, list[str]] = defaultdict(list)
    with ledgers.serve.db.connect() as connection:
        for row in connection.execute(query.where(sessions.c.id.in_(session_ids)).order_by(turns.c.seq)):
            found[row.session].append(row.id)
    scores = ledgers.learn.scores([turn_id for ids in found.values() for turn_id in ids])
    return {session: [scores.get(turn_id) for turn_id in ids] for session, ids in found.items()}


def rated_sessions(ledgers: Ledgers, rated: Rated, user: str | None = None) -> list[str]:
    """Sessions with a reply whose verdict is good or bad, newest reply first."""
    query = sa.select(samples.c.turn_id).where(
        samples.c.score > 0 if rated == "good" else samples.c.score < 0
    )
    query = query if user is None else query.where(samples.c.user == user)
    with ledgers.policies.db.connect() as connection:
        ids = list(connection.scalars(query.order_by(samples.c.created_at.desc()).limit(_MOST)))
    ids = list(dict.fromkeys([*reversed(ledgers.policies.unsettled(user)), *ids]))
    scores = ledgers.learn.scores(ids)
    ids = [i for i in ids if (scores.get(i, 0) > 0 if rated == "good" else scores.get(i, 0) < 0)]
    turns, sessions = schema.turns, schema.sessions
    of_turn: dict[str, str] = {}
    with ledgers.serve.db.connect() as connection:
        for batch in batched(ids):
            found = sa.select(turns.c.id, sessions.c.id.label("session")).join(
                sessions, sessions.c.seq == turns.c.session
            )
            of_turn.update(
                (row.id, row.session) for row in connection.execute(found.where(turns.c.id.in_(batch)))
            )
    return list(dict.fromkeys(of_turn[turn_id] for turn_id in ids if turn_id in of_turn))
