"""Forgetting on a user's request: databases, weights, exports and search index, ending in a receipt.

A note of what to delete is written first and becomes the receipt. Every step is idempotent, so a process that
was killed midway finds the note at its next start and continues. A receipt states what was deleted and when,
and contains nothing of the conversations.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from pathlib import Path

from openclaw_rl.capture import database, schema
from openclaw_rl.capture.background import background_of
from openclaw_rl.capture.conversations import conversations_of, erase_conversations
from openclaw_rl.capture.erase import ErasePlan, choose, erase_turns
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.notes import decide_note
from openclaw_rl.capture.old_samples import name_old_turns
from openclaw_rl.capture.prune import PruneReport, give_back, sweep
from openclaw_rl.capture.search import renew_index
from openclaw_rl.capture.wishes import CHANGEABLE, ON_HOLD
from openclaw_rl.processes.environments import sweep_replays
from openclaw_rl.train.policies import PolicyStore, sync_folder
from openclaw_rl.types import BASE_VERSION, Json
from openclaw_rl.types.lora import ADAPTER_FILE

KINDS = ("turn", "session", "wish", "user")
_BEGUN, _DONE = "begun", "done"


class Forgetting:
    def __init__(self, home: Path, ledgers: Ledgers, store: PolicyStore) -> None:
        self._home, self._ledgers, self._store = home, ledgers, store

    def forget(self, kind: str, name: str, user: str | None = None) -> Json | None:
        """The receipt; None if there is nothing by that name, or it is not this user's."""
        chosen = self._choose(kind, name, user)
        if chosen is None:
            return None
        conversations = conversations_of(self._ledgers.serve, name) if kind == "user" else []
        if not chosen.turn_ids and not conversations:
            return None
        note = {
            "id": f"forget-{secrets.token_hex(8)}",
            "kind": kind,
            # A hash: anyone who knows the id can find the receipt, but the receipt does not reveal it.
            "of": hashlib.sha256(name.encode()).hexdigest(),
            "at": time.time(),
            "state": _BEGUN,
            "num_turns": len(chosen.turn_ids),
            "weights_before": self._served_weights(),
            "turns": chosen.turn_ids,
            "before": chosen.before,
            "conversations": conversations,
        }
        self._write(note)
        return self._finish(note)

    def change_wish(
        self,
        wish_id: str,
        user: str | None,
        *,
        text: str | None = None,
        paused: bool | None = None,
        noted: bool | None = None,
    ) -> bool:
        """Change a wish's text, pause or resume it, or decide on its note; False if it is not this user's.

        What was learned for it is undone at once; the changed wish is taught again in the background.
        """
        policies = self._ledgers.policies
        if (wish := policies.wish(wish_id, user)) is None:
            return False
        if wish.status not in CHANGEABLE:
            raise ValueError(f"this wish is {wish.status}; ask for it again to have it back")
        if noted is not None:
            decide_note(self._ledgers.learn, wish_id, noted)
        hold = wish.status == ON_HOLD if paused is None else paused
        new = text or wish.text
        if (new, hold) != (wish.text, wish.status == ON_HOLD) or (paused is False and wish.problem):
            policies.change_wish(wish, policies.turns_of_wish(wish_id), new, hold, self._store.has_weights)
            self._remove_undone()
        return True

    def _remove_undone(self) -> list[int]:
        return [version for version in self._ledgers.policies.forgotten_versions() if self._remove(version)]

    def resume(self) -> int:
        """Finish what a killed process left; returns the number of notes finished."""
        self._remove_undone()
        notes = [json.loads(path.read_text()) for path in sorted(self._folder.glob("forget-*.json"))]
        begun = [note for note in notes if note["state"] == _BEGUN]
        for note in begun:
            self._finish(note)
        return len(begun)

    @property
    def _folder(self) -> Path:
        return self._home / "forgotten"

    def _choose(self, kind: str, name: str, user: str | None) -> ErasePlan | None:
        serve, turns = self._ledgers.serve, schema.turns
        # Turns may have been pruned; what was learned from them is forgotten anyway.
        if kind == "user":
            known = [*self._ledgers.policies.turns_of_user(name), *background_of(serve, name)]
            return choose(serve, turns.c.user == name).also(known) if user in (None, name) else None
        if kind == "wish":
            ids = self._ledgers.policies.turns_of_wish(name, user)
            return choose(serve, turns.c.id.in_(ids)).also(ids) if ids else None
        found = serve.turn_summary(name) if kind == "turn" else serve.session(name)
        if found is None or user not in (None, found["user"]):
            return None
        if kind == "turn":
            return choose(serve, turns.c.id == name)
        return choose(serve, turns.c.id.in_([turn["id"] for turn in serve.turn_summaries(name)]))

    def _finish(self, note: Json) -> Json:
        chosen, policies = ErasePlan(tuple(note["turns"]), tuple(note["before"])), self._ledgers.policies
        name_old_turns(self._ledgers)
        back = policies.erase(chosen, self._store.has_weights)
        erase_turns(self._ledgers.serve, chosen)
        erase_conversations(self._ledgers.serve, note.get("conversations", []))
        # Once more: a teacher may have been asked about them until now, and its answers stored meanwhile.
        back |= policies.erase(chosen, self._store.has_weights)
        sweep(self._ledgers.serve, PruneReport())
        give_back(self._ledgers.serve.db)
        versions = self._remove_undone()
        logs_empty = all([database.empty_log(db) for db in (self._ledgers.serve.db, self._ledgers.learn.db)])
        renew_index(self._home, self._ledgers.serve)
        sweep_replays(self._home, lambda session: self._ledgers.serve.session(session) is not None)
        undone = {"back_to": {**note.get("back_to", {}), **back}, "versions": versions}
        done = {**note, **undone, "state": _DONE, "logs_empty": logs_empty, "done_at": time.time(),
                "weights_after": self._served_weights()}  # fmt: skip
        for name in ("turns", "before", "conversations"):
            done.pop(name, None)
        self._write(done)
        return done

    def _remove(self, version: int) -> bool:
        """Delete the files and exports of a version that was undone; whether its folder existed."""
        folder, exports = self._store.path(version), (self._home / "exports").glob(f"version-{version}-*")
        there = folder.exists()
        self._store.forget(version, only_state=False)
        for export in exports:
            shutil.rmtree(export) if export.is_dir() else export.unlink()
        return there

    def _served_weights(self) -> dict[str, str]:
        """scope -> version and checksum of the weights that serve it."""
        table = self._ledgers.policies.serving_table()
        return {scope: f"{version} {self._checksum(version)}" for scope, version in table.items()}

    def _checksum(self, version: int) -> str:
        path = self._store.path(version) / ADAPTER_FILE
        if version == BASE_VERSION or not path.exists():
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _write(self, note: Json) -> None:
        self._folder.mkdir(exist_ok=True, mode=0o700)
        final = self._folder / f"{note['id']}.json"
        work = final.with_suffix(".part")
        with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(note, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        work.rename(final)
        for folder in (
            self._home,
            self._folder,
        ):  # a new name is lost in a power cut until its folder is synced
            sync_folder(folder)
