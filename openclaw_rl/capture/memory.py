"""Each user's wishes from judged turns, as a note for later system prompts.

Read from the verdicts, so it survives restarts and needs no training. A request only reads a
dict; ``refresh`` runs in the background.
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
    WishRecord,
    wishes,
)
from openclaw_rl.roles import Role, holds, with_roles

_PAGE = 500
_MAX_CHARS = 200
_MAX_USERS = 10_000
_MOST_ROLES = 32
_HEAD = "What this person asked for before, and still wants:"


class HintMemory:
    """Each user's newest wishes, each once, as far as they belong in the note (``notes.py``)."""

    def __init__(
        self,
        ledgers: Ledgers,
        is_wish: Callable[[str], bool],
        ask: bool = False,
        max_tokens: int = 256,
        num_tokens: Callable[[str], int] = len,
        everywhere: bool = False,
    ) -> None:
        """``is_wish`` distinguishes lasting wishes from remarks about one reply or a tool.

        ``ask``: include only wishes that the user has consented to.
        """
        self._serve_ledger, self._policies, self._db = ledgers.serve, ledgers.policies, ledgers.learn.db
        self._is_wish, self._mode = is_wish, ASK if ask else ON
        self._max_tokens, self._num_tokens, self._everywhere = max_tokens, num_tokens, everywhere
        self._last = self._generation = 0
        #: Values are replaced, never mutated: a request may read while the background writes.
        self._hints: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._roles: dict[str, list[Role]] = {}
        #: Likewise: (user, original text) -> current wording; empty if it does not belong in the note.
        self._now: dict[tuple[str, str], str] = {}

    def note(self, user: str, system: str = "") -> str | None:
        """The note for the system prompt, with the newest wishes that fit; None if there are none.

        ``system``: the request's own. The note is given where a learned version would answer: in plain chats,
        and under system prompts like those under which the person complained.
        """
        if not self._everywhere and not holds(self._roles.get(user, []), system):
            return None
        unasked = self._mode == ON
        hints = [self._now.get((user, hint), hint if unasked else "") for hint in self._hints.get(user, ())]
        lines = [f"- {hint}" for hint in dict.fromkeys(filter(None, hints))]
        while lines and self._num_tokens("\n".join([_HEAD, *lines])) > self._max_tokens:
            lines = lines[1:]
        return "\n".join([_HEAD, *lines]) if lines else None

    def refresh(self) -> None:
        """Read verdicts since the last call; start over after something was pruned or forgotten."""
        self._now = self._changed()
        generation = self._serve_ledger.counts()["generation"]
        if generation != self._generation:
            self._generation, self._last, self._hints = generation, 0, OrderedDict()
            self._roles = {}
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
        """Current wording of wishes; empty for those ended, refused or learned, unless made again."""
        with self._db.connect() as connection:
            rows = connection.execute(sa.select(wishes)).all()
        found = [WishRecord(**row._mapping) for row in rows]
        now = {(wish.user, _line(wish.said or wish.text)): "" for wish in found if wish.status not in CURRENT}
        wanted = [wish for wish in found if wish.status in CURRENT]
        learned = learned_in(self._policies, wanted)
        held = held_by_weights(self._policies, learned, wanted)
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
        user = turn["user"]
        prompt = self._policies.system_prompt(turn_id)
        self._roles[user] = with_roles(self._roles.get(user, []), [prompt])[-_MOST_ROLES:]
        known = [hint for hint in self._hints.get(user, ()) if hint not in new]
        self._hints[user] = tuple([*known, *new][-MOST_WISHES:])
        self._hints.move_to_end(user)
        while len(self._hints) > _MAX_USERS:
            self._roles.pop(self._hints.popitem(last=False)[0], None)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_CHARS]
