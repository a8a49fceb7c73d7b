"""What judged turns taught about each user, ready to be said in a later system prompt.

Read from the verdicts, so it survives restarts and needs no training. A request only looks into a
dict; ``refresh`` is for the background.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable

import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger, verdicts
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.wishes import CURRENT, ON_HOLD, REPLACED, TAKEN_BACK, wishes

_PAGE = 500
_NUM_HINTS = 5
_MAX_CHARS = 200
_MAX_USERS = 10_000
_HEAD = "What this person asked for before, and still wants:"


class HintMemory:
    """The newest wishes of each user, each once."""

    def __init__(
        self, serve_ledger: ServeLedger, learn_ledger: LearnLedger, is_wish: Callable[[str], bool]
    ) -> None:
        """``is_wish`` tells what somebody asked for from what is said of one reply or of a tool."""
        self._serve_ledger, self._db, self._is_wish = serve_ledger, learn_ledger.db, is_wish
        self._last = self._generation = 0
        #: Replaced, never changed: a request may be reading while the background writes.
        self._hints: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        #: Likewise: what a person said -> how they word it now; empty where they no longer want it.
        self._now: dict[tuple[str, str], str] = {}

    def note(self, user: str) -> str | None:
        """For the system prompt; None while there is nothing to say."""
        hints = [self._now.get((user, hint), hint) for hint in self._hints.get(user, ())]
        hints = list(dict.fromkeys(filter(None, hints)))
        return "\n".join([_HEAD, *(f"- {hint}" for hint in hints)]) if hints else None

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
        """Wishes that are worded anew, paused, replaced or taken back; where it is asked for again, not."""
        over, current = (ON_HOLD, REPLACED, TAKEN_BACK), wishes.c.status.in_(CURRENT)
        with self._db.connect() as connection:
            rows = connection.execute(sa.select(wishes).where(wishes.c.status.in_(over) | current)).all()
        now = {(row.user, _line(row.said or row.text)): "" for row in rows if row.status in over}
        for row in rows:
            if row.status in CURRENT:
                now[row.user, _line(row.said or row.text)] = _line(row.text)
        return now

    def _learn(self, turn_id: str, hints: list[str]) -> None:
        turn = self._serve_ledger.turn_summary(turn_id)
        if turn is None:
            return
        new = [_line(hint) for hint in hints if self._is_wish(hint)]
        if not new:
            return
        known = [hint for hint in self._hints.get(turn["user"], ()) if hint not in new]
        self._hints[turn["user"]] = tuple([*known, *new][-_NUM_HINTS:])
        self._hints.move_to_end(turn["user"])
        while len(self._hints) > _MAX_USERS:
            self._hints.popitem(last=False)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_CHARS]
