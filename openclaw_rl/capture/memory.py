"""What judged turns taught about each user, ready to be said in a later system prompt.

Read from the verdicts, so it survives restarts and needs no training. A request only looks into a
dict; ``refresh`` is for the background.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable

import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import verdicts
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.notes import ASK, GIVEN, ON, held_by_weights, learned_in, note_state
from openclaw_rl.capture.wishes import (
    CURRENT,
    MOST_WISHES,
    ON_HOLD,
    REPLACED,
    SET_ASIDE,
    TAKEN_BACK,
    Wish,
    wishes,
)

_PAGE = 500
_MAX_CHARS = 200
_MAX_USERS = 10_000
_HEAD = "What this person asked for before, and still wants:"


class HintMemory:
    """The newest wishes of each user, each once, as far as they are to be told (``notes.py``)."""

    def __init__(
        self,
        ledgers: Ledgers,
        is_wish: Callable[[str], bool],
        ask: bool = False,
        max_tokens: int = 256,
        num_tokens: Callable[[str], int] = len,
    ) -> None:
        """``is_wish`` tells what somebody asked for from what is said of one reply or of a tool.

        ``ask``: only what its person said yes to.
        """
        self._serve_ledger, self._policies, self._db = ledgers.serve, ledgers.policies, ledgers.learn.db
        self._is_wish, self._mode = is_wish, ASK if ask else ON
        self._max_tokens, self._num_tokens = max_tokens, num_tokens
        self._last = self._generation = 0
        #: Replaced, never changed: a request may be reading while the background writes.
        self._hints: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        #: Likewise: what a person said -> how they word it now; empty where it is not to be told.
        self._now: dict[tuple[str, str], str] = {}

    def note(self, user: str) -> str | None:
        """For the system prompt, the newest wishes that fit; None while there is nothing to say."""
        unasked = self._mode == ON
        hints = [self._now.get((user, hint), hint if unasked else "") for hint in self._hints.get(user, ())]
        lines = [f"- {hint}" for hint in dict.fromkeys(filter(None, hints))]
        while lines and self._num_tokens("\n".join([_HEAD, *lines])) > self._max_tokens:
            lines = lines[1:]
        return "\n".join([_HEAD, *lines]) if lines else None

    def refresh(self) -> None:
        """Take up verdicts that came since the last time; anew after something was pruned or forgotten."""
        self._now = self._changed()
        generation = self._serve_ledger.counts()["generation"]
        if generation != self._generation:
            self._generation, self._last, self._hints = generation, 0, OrderedDict()
        query = sa.select(verdicts.c.seq, verdicts.c.turn_id, verdicts.c.hints, verdicts.c.score)
        while True:
            with self._db.connect() as connection:
                page = query.where(verdicts.c.seq > self._last).order_by(verdicts.c.seq).limit(_PAGE)
                rows = connection.execute(page).all()
            for row in rows:
                if row.score < 0 and (hints := json.loads(row.hints)):
                    self._learn(row.turn_id, hints)
                self._last = row.seq
            if len(rows) < _PAGE:
                return

    def _changed(self) -> dict[tuple[str, str], str]:
        """Wishes that are worded anew, over, refused or learned; where it is asked for again, not."""
        over, current = (ON_HOLD, REPLACED, TAKEN_BACK, SET_ASIDE), wishes.c.status.in_(CURRENT)
        with self._db.connect() as connection:
            rows = connection.execute(sa.select(wishes).where(wishes.c.status.in_(over) | current)).all()
        found = [Wish(**row._mapping) for row in rows]
        now = {(wish.user, _line(wish.said or wish.text)): "" for wish in found if wish.status in over}
        wanted = [wish for wish in found if wish.status in CURRENT]
        held = held_by_weights(self._policies, learned_in(self._policies, wanted)) if wanted else set()
        for wish in wanted:
            told = note_state(wish, self._mode, wish.turn_id in held) == GIVEN
            now[wish.user, _line(wish.said or wish.text)] = _line(wish.text) if told else ""
        return now

    def _learn(self, turn_id: str, hints: list[str]) -> None:
        turn = self._serve_ledger.turn_summary(turn_id)
        if turn is None:
            return
        new = [_line(hint) for hint in hints if self._is_wish(hint)]
        if not new:
            return
        known = [hint for hint in self._hints.get(turn["user"], ()) if hint not in new]
        self._hints[turn["user"]] = tuple([*known, *new][-MOST_WISHES:])
        self._hints.move_to_end(turn["user"])
        while len(self._hints) > _MAX_USERS:
            self._hints.popitem(last=False)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_CHARS]
