"""Samples from before examples named all their turns: found out once, by comparing prompts and hints."""

from __future__ import annotations

from functools import cache
from typing import TypedDict

import sqlalchemy as sa

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.sample_turns import record_turns
from openclaw_rl.capture.samples import change_sources, samples
from openclaw_rl.capture.wishes import wishes
from openclaw_rl.types import Json, Scope, Source

_DONE = "old_samples_named"


def name_old_turns(ledgers: Ledgers) -> None:
    """Before something is forgotten or pruned; does nothing the second time."""
    db = ledgers.learn.db
    with db.connect() as connection:
        if ledgers.learn.marks(connection)[_DONE]:
            return
        ids = list(connection.scalars(sa.select(samples.c.turn_id).where(samples.c.data.is_not(None))))
    naming = _Naming(ledgers)
    for turn_id in ids:
        naming.name(turn_id)
    with database.writing(db) as connection:
        ledgers.learn.set_mark(connection, _DONE, 1)


class _Turns(TypedDict):
    turn_ids: tuple[str, ...]
    wish_ids: tuple[str, ...]


class _Naming:
    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._prompts = cache(self._read_prompts)
        self._words = cache(self._read_words)

    def name(self, turn_id: str) -> None:
        mine = samples.c.turn_id == turn_id
        columns = (samples.c.user, samples.c.scope, samples.c.data)
        with database.writing(self._ledgers.learn.db) as connection:
            row = connection.execute(sa.select(*columns).where(mine, samples.c.data.is_not(None))).first()
            if row is None:
                return
            found: list[Source] = []

            def named(source: Json, prompt_ids: list[int] | None) -> Json:
                if source["kind"] != "hinted" or "wish_ids" in source:
                    return source
                turns = self._turns_of(source, prompt_ids, row.user, row.scope)
                found.append(Source(source["kind"], **turns))
                return {**source, **turns}

            changed = change_sources(row.data, named)
            if found:
                connection.execute(samples.update().where(mine).values(data=changed))
                record_turns(connection, turn_id, found)

    def _turns_of(self, source: Json, prompt_ids: list[int] | None, user: str, scope: Scope) -> _Turns:
        asked = self._prompts(user, scope).get(tuple(prompt_ids or ()), [])
        others = [turn_id for turn_id in asked if turn_id not in source["turn_ids"]]
        hint = source["hint"] or ""
        said_in = [i for i, texts in self._words(user, scope).items() if any(text in hint for text in texts)]
        return {"turn_ids": (*source["turn_ids"], *others), "wish_ids": tuple(said_in)}

    def _read_prompts(self, user: str, scope: Scope) -> dict[tuple[int, ...], list[str]]:
        """Turns that began a conversation, by their prompts."""
        turns = schema.turns
        query = sa.select(turns.c.id).where(
            turns.c.user == user, turns.c.scope == scope, turns.c.continues.is_(None)
        )
        with self._ledgers.serve.db.connect() as connection:
            found = map(self._ledgers.serve.load_turn, list(connection.scalars(query)))
        prompts: dict[tuple[int, ...], list[str]] = {}
        for turn in found:
            if turn is not None and turn.prompt_ids:
                prompts.setdefault(tuple(turn.prompt_ids), []).append(turn.id)
        return prompts

    def _read_words(self, user: str, scope: Scope) -> dict[str, list[str]]:
        """Where each wish was said, and its words."""
        query = sa.select(wishes).where(wishes.c.user == user, wishes.c.scope == scope)
        with self._ledgers.learn.db.connect() as connection:
            rows = connection.execute(query).all()
        return {row.turn_id: [text for text in (row.text, row.said) if text] for row in rows}
