"""Deletes pruned turns' text from the learn ledger: in verdicts, samples and wishes.

The rows stay, so that counts and versions can still be explained: each turn's verdict and outcome.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import LearnLedger, tasks, verdicts
from openclaw_rl.capture.sample_turns import strip_samples
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.wishes import CURRENT, PRUNED, wish_turns, wishes

#: Source of verdicts whose reason quotes a tool's output.
_QUOTING = "rule:tool_error"
_QUOTED = "the tool reported an error"


def forget_words(learn_ledger: LearnLedger, turn_ids: Sequence[str]) -> None:
    """Delete the text of these turns; a wish that began with one of them ends."""
    for batch in database.batched(turn_ids):
        with database.writing(learn_ledger.db) as connection:
            judged, of_tools = verdicts.c.turn_id.in_(batch), verdicts.c.source == _QUOTING
            connection.execute(verdicts.update().where(judged).values(hints="[]"))
            connection.execute(verdicts.update().where(judged, of_tools).values(reason=_QUOTED))
            connection.execute(samples.update().where(samples.c.turn_id.in_(batch)).values(data=None))
            strip_samples(connection, batch)
            connection.execute(tasks.delete().where(tasks.c.turn_id.in_(batch)))
            _forget_wishes(connection, batch)


def _forget_wishes(connection: sa.Connection, turn_ids: Sequence[str]) -> None:
    mine = wishes.c.turn_id.in_(turn_ids)
    active = mine & wishes.c.status.in_(CURRENT)
    connection.execute(wishes.update().where(active).values(status=PRUNED, ended_at=time.time()))
    connection.execute(wishes.update().where(mine).values(text="", said=""))
    connection.execute(wish_turns.delete().where(wish_turns.c.turn_id.in_(turn_ids)))
