"""A user's requests that opened a session: wishes are taught on them, and candidates examined on them."""

from __future__ import annotations

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.events import excluded_turns
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Scope

_PAGE = 100


def find_openers(ledger: ServeLedger, user: str, scope: Scope, limit: int) -> list[str]:
    """The newest turns that continue no other turn; without side requests, secrets and excluded turns."""
    turns, found = schema.turns, list[str]()
    query = sa.select(turns.c.id, turns.c.seq).where(
        turns.c.user == user, turns.c.scope == scope, turns.c.kind != "side", turns.c.continues.is_(None),
        turns.c.secrets == "",
    )  # fmt: skip
    page = query.order_by(turns.c.seq.desc()).limit(_PAGE)
    while len(found) < limit:
        with ledger.db.connect() as connection:
            rows = connection.execute(page).all()
        if not rows:
            break
        excluded = excluded_turns(ledger.db, [row.id for row in rows])
        found += [row.id for row in rows if row.id not in excluded]
        page = query.where(turns.c.seq < rows[-1].seq).order_by(turns.c.seq.desc()).limit(_PAGE)
    return found[:limit]
