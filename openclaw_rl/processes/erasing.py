"""Erases chosen turns from a data folder: the live one, or one unpacked from a backup.

What to erase is chosen by name in the live folder. In a backup it is found again from receipts, which hold
the ids of the erased turns and a hash of the name: an earlier copy may hold turns that were pruned since.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

import sqlalchemy as sa

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.background import background_of
from openclaw_rl.capture.conversations import conversations_of, erase_conversations
from openclaw_rl.capture.erase import ErasePlan, choose, erase_turns
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.old_samples import name_old_turns
from openclaw_rl.capture.prune import PruneReport, give_back, sweep
from openclaw_rl.capture.wishes import wishes
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Json


@dataclass(frozen=True, slots=True)
class Erased:
    """What to erase: turns with all that was made of them, and stored conversations."""

    plan: ErasePlan
    conversations: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.plan.turn_ids or self.conversations)

    def to_json(self) -> Json:
        return {
            "turns": self.plan.turn_ids,
            "before": self.plan.before,
            "conversations": self.conversations,
        }

    @classmethod
    def from_json(cls, data: Json) -> Erased:
        plan = ErasePlan(tuple(data.get("turns", ())), tuple(data.get("before", ())))
        return cls(plan, tuple(data.get("conversations", ())))

    def __or__(self, other: Erased) -> Erased:
        plan = self.plan.also(other.plan.turn_ids)
        before = {*plan.before, *other.plan.before} - set(plan.turn_ids)
        both = dict.fromkeys([*self.conversations, *other.conversations])
        return Erased(ErasePlan(plan.turn_ids, tuple(before)), tuple(both))


class Erasing:
    def __init__(self, home: Path, ledgers: Ledgers, store: PolicyStore) -> None:
        self._home, self._ledgers, self._store = home, ledgers, store

    def erase(self, chosen: Erased) -> Json:
        """Idempotent; returns where scopes went back to, deleted versions, and whether the logs are empty."""
        serve, policies = self._ledgers.serve, self._ledgers.policies
        name_old_turns(self._ledgers)
        back = policies.erase(chosen.plan, self._store.has_weights)
        erase_turns(serve, chosen.plan)
        erase_conversations(serve, chosen.conversations)
        # Once more: a teacher may have been asked about them until now, and its answers stored meanwhile.
        back |= policies.erase(chosen.plan, self._store.has_weights)
        sweep(serve, PruneReport())
        give_back(serve.db)
        versions = self.remove_undone()
        logs_empty = all([database.empty_log(db) for db in (serve.db, self._ledgers.learn.db)])
        return {"back_to": back, "versions": versions, "logs_empty": logs_empty}

    def remove_undone(self) -> list[int]:
        return [version for version in self._ledgers.policies.forgotten_versions() if self._remove(version)]

    def _remove(self, version: int) -> bool:
        """Delete the files and exports of a version that was undone; whether its folder existed."""
        folder, exports = self._store.path(version), (self._home / "exports").glob(f"version-{version}-*")
        there = folder.exists()
        self._store.forget(version, only_state=False)
        for export in exports:
            shutil.rmtree(export) if export.is_dir() else export.unlink()
        return there


def hash_name(name: str) -> str:
    """Anyone who knows a name can find its receipt, but the receipt does not reveal it."""
    return hashlib.sha256(name.encode()).hexdigest()


def choose_user(ledgers: Ledgers, name: str, until: float = inf) -> Erased:
    """Everything of a person until then. Turns may have been pruned; what was learned from them goes, too."""
    turns, serve = schema.turns, ledgers.serve
    plan = choose(serve, (turns.c.user == name) & (turns.c.created_at <= until))
    known = [*ledgers.policies.turns_of_user(name, until), *background_of(serve, name, until)]
    return Erased(plan.also(known), tuple(conversations_of(serve, name, until)))


class Receipts:
    """Finds what receipts name in an earlier copy of the data."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers

    def find(self, receipts: Iterable[Json]) -> Erased:
        found = Erased(ErasePlan((), ()))
        for receipt in receipts:
            found |= self._by_id(Erased.from_json(receipt.get("erased", receipt)))
            if (name := self._names.get((receipt["kind"], receipt["of"]))) is not None:
                found |= self._by_name(receipt["kind"], name, receipt["at"])
        return found

    def _by_id(self, erased: Erased) -> Erased:
        """Those that are in this copy. The turns before them are looked up: they may have gone on since."""
        ids = [i for i in erased.plan.turn_ids if i in self._turn_ids]
        conversations = tuple(i for i in erased.conversations if i in self._conversations)
        return Erased(self._choose(ids), conversations)

    def _by_name(self, kind: str, name: str, until: float) -> Erased:
        if kind == "user":
            return choose_user(self._ledgers, name, until)
        if kind == "wish":
            return Erased(self._choose(self._ledgers.policies.turns_of_wish(name)))
        turns, sessions = schema.turns, schema.sessions
        session = sa.select(sessions.c.seq).where(sessions.c.id == name).scalar_subquery()
        mine = turns.c.id == name if kind == "turn" else turns.c.session == session
        return Erased(choose(self._ledgers.serve, mine & (turns.c.created_at <= until)))

    def _choose(self, ids: list[str]) -> ErasePlan:
        plan = ErasePlan((), ())
        for batch in database.batched(ids):
            more = choose(self._ledgers.serve, schema.turns.c.id.in_(batch))
            plan = ErasePlan((*plan.turn_ids, *more.turn_ids), (*plan.before, *more.before))
        return plan.also(ids)

    @cached_property
    def _turn_ids(self) -> set[str]:
        with self._ledgers.serve.db.connect() as connection:
            stored = set(connection.scalars(sa.select(schema.turns.c.id)))
        return stored | set(self._ledgers.policies.turns_of_user(None))

    @cached_property
    def _conversations(self) -> set[str]:
        return set(conversations_of(self._ledgers.serve, None))

    @cached_property
    def _names(self) -> dict[tuple[str, str], str]:
        """(kind, hash) -> name, of everything in this copy that can be forgotten by its name."""
        turns, sessions = schema.turns, schema.sessions
        with self._ledgers.serve.db.connect() as connection:
            named = [("turn", i) for i in connection.scalars(sa.select(turns.c.id))]
            named += [("session", i) for i in connection.scalars(sa.select(sessions.c.id))]
            named += [("user", i) for i in connection.scalars(sa.select(turns.c.user).distinct())]
        with self._ledgers.learn.db.connect() as connection:
            named += [("wish", i) for i in connection.scalars(sa.select(wishes.c.turn_id))]
        return {(kind, hash_name(name)): name for kind, name in named}
