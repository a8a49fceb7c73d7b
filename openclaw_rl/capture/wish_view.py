"""Wishes as users see them: in their words, with the evidence, and real answers from before and after.

No model writes any of it: the words are the user's, and the answers are replies that they received.
"""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.database import batched
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.notes import held_by_weights, learned_in, note_state
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.texts import plain_text, turn_texts
from openclaw_rl.capture.versions import REJECTED
from openclaw_rl.capture.wishes import (
    CURRENT,
    NOT_LEARNABLE,
    ON_HOLD,
    PAUSED,
    SET_ASIDE,
    WishRecord,
    list_wishes,
    wish_turns,
)
from openclaw_rl.types import Json, Policy, Scope

LEARNED, NOT_YET, NOT_POSSIBLE, IS_PAUSED, OVER = "learned", "not yet", "not possible", "paused", "over"
_STATES = {NOT_LEARNABLE: NOT_POSSIBLE, "giving up": NOT_POSSIBLE, PAUSED: IS_PAUSED, "pausing": IS_PAUSED,
           ON_HOLD: IS_PAUSED, SET_ASIDE: IS_PAUSED}  # fmt: skip
#: Characters shown of an answer; the turn's page shows all of it.
_MAX_CHARS = 1000


def view_wishes(ledgers: Ledgers, user: str | None, notes: str, limit: int = 100) -> list[Json]:
    """Newest first, with the state of each; ``notes``: the mode of prompt notes (``notes.py``)."""
    found = list_wishes(ledgers.learn, user, limit)
    asked, learned = _asked(ledgers, found), learned_in(ledgers.policies, found)
    held = held_by_weights(ledgers.policies, learned, found)
    after = {wish.turn_id: _answer_since(ledgers, wish, learned[wish.turn_id])
             for wish in found if wish.turn_id in learned}  # fmt: skip
    setbacks = {scope: _setback(ledgers.policies, scope) for scope in {wish.scope for wish in found}}
    texts = turn_texts(ledgers.serve, [*(w.turn_id for w in found), *filter(None, after.values())])
    return [
        {
            "id": wish.turn_id,
            **asdict(wish),
            "reason": wish.problem or _why_not_yet(wish, wish.turn_id in learned, setbacks[wish.scope]),
            "state": _state(wish, wish.turn_id in learned),
            "times": len(asked[wish.turn_id]),
            "turns": asked[wish.turn_id],
            "learned_at": learned[wish.turn_id][1] if wish.turn_id in learned else None,
            "learned_in": learned[wish.turn_id][0] if wish.turn_id in learned else None,
            "note": note_state(wish, notes, wish.turn_id in held),
            "before": _answer(texts, wish.turn_id),
            "after": _answer(texts, after.get(wish.turn_id)),
        }
        for wish in found
    ]


def _state(wish: WishRecord, is_learned: bool) -> str:
    if wish.status in CURRENT:
        return LEARNED if is_learned else NOT_YET
    return _STATES.get(wish.status, OVER)


def _setback(policies: PolicyLedger, scope: Scope) -> Policy | None:
    """The scope's newest version, if it was rejected and no other is being made."""
    newest = next(iter(policies.list_policies(1, scope)), None)
    return newest if newest is not None and newest.status == REJECTED else None


def _why_not_yet(wish: WishRecord, is_learned: bool, setback: Policy | None) -> str | None:
    """That nothing happens until the next complaint, if the last version made for a wish was rejected."""
    if setback is None or is_learned or wish.status not in CURRENT or setback.created_at < wish.created_at:
        return None
    failed = [check["name"] for check in setback.gate.get("checks", ()) if not check["passed"]]
    why = f" ({', '.join(failed)})" if failed else ""
    return f"version {setback.version} failed its checks{why}; the next complaint makes another one"


def _asked(ledgers: Ledgers, found: list[WishRecord]) -> dict[str, list[str]]:
    """The turns in which each wish was made, in order."""
    asked: dict[str, list[str]] = {wish.turn_id: [] for wish in found}
    with ledgers.learn.db.connect() as connection:
        for batch in batched(list(asked)):
            query = sa.select(wish_turns).where(wish_turns.c.wish.in_(batch)).order_by(wish_turns.c.at)
            for row in connection.execute(query):
                asked[row.wish].append(row.turn_id)
    return asked


def _answer_since(ledgers: Ledgers, wish: WishRecord, learned: tuple[int, float]) -> str | None:
    """The user's newest first reply of a conversation by a version that had learned the wish.

    Later replies may answer "Perfect, thanks!", which shows nothing.
    """
    turns = schema.turns
    query = sa.select(turns.c.id).where(
        turns.c.user == wish.user, turns.c.scope == wish.scope, turns.c.kind != "side",
        turns.c.continues.is_(None), turns.c.policy_version >= learned[0],
        turns.c.finish_reason != "cancelled",
    )  # fmt: skip
    with ledgers.serve.db.connect() as connection:
        return connection.scalar(query.order_by(turns.c.created_at.desc()).limit(1))


def _answer(texts: dict[str, Json], turn_id: str | None) -> Json | None:
    if turn_id is None or turn_id not in texts:
        return None
    said = texts[turn_id]
    request = next((m["content"] for m in reversed(said["input"]) if m["role"] == "user"), "")
    return {"turn_id": turn_id, "request": _cut(request), "reply": _cut(plain_text(said["reply"]))}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
