"""Moves a wish whose first turn is forgotten to the next turn that made it, in that turn's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from openclaw_rl.capture.wishes import CURRENT, NOTHING_TRIED, TO_TEACH, wish_turns, wishes


def rehome_wishes(
    connection: sa.Connection, turn_ids: Sequence[str], words_of: Callable[[str], str | None]
) -> None:
    """Move the wishes that began with these turns; one that no other turn made is deleted.

    The turns must already be deleted from ``wish_turns``. ``words_of`` returns a turn's hint.
    """
    for wish in connection.execute(sa.select(wishes).where(wishes.c.turn_id.in_(turn_ids))).all():
        asked = sa.select(wish_turns).where(wish_turns.c.wish == wish.turn_id).order_by(wish_turns.c.at)
        homes = ((row, words_of(row.turn_id)) for row in connection.execute(asked).all())
        found = next(((row, text) for row, text in homes if text and _is_free(connection, row.turn_id)), None)
        if found is None:
            connection.execute(wish_turns.delete().where(wish_turns.c.wish == wish.turn_id))
            connection.execute(wishes.delete().where(wishes.c.turn_id == wish.turn_id))
        else:
            _move(connection, wish, *found)


def _is_free(connection: sa.Connection, turn_id: str) -> bool:
    """Whether no wish began with this turn."""
    return connection.execute(sa.select(wishes.c.turn_id).filter_by(turn_id=turn_id)).first() is None


def _move(connection: sa.Connection, wish: Any, asked: Any, text: str) -> None:
    """As if it had been made there first. A user's edit is dropped: it may repeat the forgotten text."""
    status = TO_TEACH if wish.status in CURRENT else wish.status
    values = {
        "turn_id": asked.turn_id, "created_at": asked.at, "text": text, "said": "", "status": status,
        **NOTHING_TRIED,
    }  # fmt: skip
    connection.execute(wishes.update().where(wishes.c.turn_id == wish.turn_id).values(values))
    mine = wish_turns.c.wish == wish.turn_id
    connection.execute(wish_turns.update().where(mine).values(wish=asked.turn_id))
