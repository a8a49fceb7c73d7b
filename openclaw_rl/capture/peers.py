"""Several answers to one request: requested at once (``n``), or one after the other (regenerated)."""

from __future__ import annotations

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger

#: Upper limit; nobody requests more at once.
_MOST = 64


def peer_scores(serve_ledger: ServeLedger, learn_ledger: LearnLedger, turn_id: str) -> tuple[int, ...]:
    """Verdicts on the other answers to this turn's request that were judged, oldest first.

    The same request means the same prompt in the same session: equal blocks and an equal tail.
    """
    mine, other = schema.turns.alias("mine"), schema.turns.alias("other")
    same = (
        (other.c.session == mine.c.session)
        & (other.c.block.is_not_distinct_from(mine.c.block))
        & (other.c.prompt_tail == mine.c.prompt_tail)
        & (other.c.id != mine.c.id)
    )
    query = sa.select(other.c.id).select_from(mine.join(other, same)).where(mine.c.id == turn_id)
    with serve_ledger.db.connect() as connection:
        ids = list(connection.scalars(query.order_by(other.c.seq).limit(_MOST)))
    found = [learn_ledger.verdict(peer) for peer in ids]
    return tuple(verdict.score for verdict in found if verdict is not None and verdict.trainable)
