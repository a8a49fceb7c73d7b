"""Prompt notes: state a wish in the user's system prompt before any version has learned it.

``--notes on`` adds the note at once, ``ask`` proposes it and waits for the user's consent. It is withdrawn
once the serving version meets the wish as well without it: on held-out requests, when the version was checked
(``GateResult.as_told``). It returns if the user complains about the same thing again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import TRAINED, policies, samples
from openclaw_rl.capture.wishes import CURRENT, WishRecord, wish_turns, wishes
from openclaw_rl.types import Scope

#: Newest checks that are looked at.
_CHECKS = 32
OFF, ASK, ON = "off", "ask", "on"
GIVEN, PROPOSED, WITHDRAWN, REFUSED, NONE = "given", "proposed", "withdrawn", "refused", "none"


def note_state(wish: WishRecord, mode: str, is_withdrawn: bool) -> str:
    """The state of a wish's note; the user's own decision comes first."""
    if mode == OFF or wish.status not in CURRENT:
        return NONE
    if wish.noted == 0:
        return REFUSED
    if is_withdrawn:
        return WITHDRAWN
    return GIVEN if mode == ON or wish.noted else PROPOSED


def decide_note(ledger: LearnLedger, wish_id: str, noted: bool) -> None:
    with database.writing(ledger.db) as connection:
        connection.execute(wishes.update().where(wishes.c.turn_id == wish_id).values(noted=int(noted)))


def learned_in(ledger: PolicyLedger, found: list[WishRecord]) -> dict[str, tuple[int, float]]:
    """The first version in the serving lineage that learned each wish, and when it was published."""
    served = {scope: set(ledger.lineage(ledger.serving(scope), scope)) for scope in {w.scope for w in found}}
    scopes = {wish.turn_id: wish.scope for wish in found}
    learned: dict[str, tuple[int, float]] = {}
    query = (
        sa.select(wish_turns.c.wish, policies.c.version, policies.c.published_at)
        .join(samples, samples.c.turn_id == wish_turns.c.turn_id)
        .join(policies, policies.c.version == samples.c.step)
        .where(samples.c.status == TRAINED)
        .order_by(policies.c.version)
    )
    with ledger.db.connect() as connection:
        for batch in batched(list(scopes)):
            for row in connection.execute(query.where(wish_turns.c.wish.in_(batch))):
                if row.version in served[scopes[row.wish]]:
                    learned.setdefault(row.wish, (row.version, row.published_at))
    return learned


def held_by_weights(
    ledger: PolicyLedger, learned: dict[str, tuple[int, float]], found: Sequence[WishRecord]
) -> set[str]:
    """The learned wishes that need no note: measured to hold without it, and not complained about since."""
    said_again: set[str] = set()
    with ledger.db.connect() as connection:
        for batch in batched(list(learned)):
            query = sa.select(wish_turns.c.wish, sa.func.max(wish_turns.c.at)).where(
                wish_turns.c.wish.in_(batch)
            )
            for wish, at in connection.execute(query.group_by(wish_turns.c.wish)):
                if at > learned[wish][1]:
                    said_again.add(wish)
    held = [wish for wish in found if wish.turn_id in learned.keys() - said_again]
    as_told = {scope: _as_told(ledger, scope) for scope in {wish.scope for wish in held}}
    return {wish.turn_id for wish in held if as_told[wish.scope].get(wish.text, True)}


def _as_told(ledger: PolicyLedger, scope: Scope) -> dict[str, bool]:
    """Wish -> what the newest check that looked at it found; versions of earlier releases did not look."""
    newest = ledger.lineage(ledger.serving(scope), scope)[:_CHECKS]
    query = sa.select(policies.c.gate).where(policies.c.version.in_(newest)).order_by(policies.c.version)
    found: dict[str, bool] = {}
    with ledger.db.connect() as connection:
        for gate in connection.scalars(query):
            found |= json.loads(gate).get("as_told") or {}
    return found
