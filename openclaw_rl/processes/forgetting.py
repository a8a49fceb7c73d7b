"""Forgetting on a user's request: databases, weights, search index, backups and exports, ending in a receipt.

A note of what to delete is written first and becomes the receipt. Every step is idempotent, so a process that
was killed midway finds the note at its next start and continues. A receipt states what was deleted and when,
with the ids of the deleted turns, so that they can be deleted again from a backup that is restored later; it
contains nothing of the conversations.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from pathlib import Path

from openclaw_rl.capture import schema
from openclaw_rl.capture.erase import ErasePlan, choose
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.notes import decide_note
from openclaw_rl.capture.search import renew_index
from openclaw_rl.capture.wishes import CHANGEABLE, ON_HOLD
from openclaw_rl.private_files import write_private
from openclaw_rl.processes.archive import FORGOTTEN
from openclaw_rl.processes.backups import Backups, read_receipts
from openclaw_rl.processes.environments import sweep_replays
from openclaw_rl.processes.erasing import Erased, Erasing, choose_user, hash_name
from openclaw_rl.processes.exports import Exports
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.train.rebuild import find_pruned, find_repeat
from openclaw_rl.types import BASE_VERSION, Json, Scope
from openclaw_rl.types.lora import ADAPTER_FILE

KINDS = ("turn", "session", "wish", "user")
_BEGUN, _DONE = "begun", "done"


class Forgetting:
    def __init__(self, home: Path, ledgers: Ledgers, store: PolicyStore) -> None:
        self._home, self._ledgers, self._store = home, ledgers, store
        self._erasing = Erasing(home, ledgers, store)

    def forget(self, kind: str, name: str, user: str | None = None) -> Json | None:
        """The receipt; None if there is nothing by that name, or it is not this user's."""
        chosen = self._choose(kind, name, user)
        if not chosen:
            return None
        note = {
            "id": f"forget-{secrets.token_hex(8)}",
            "kind": kind,
            "of": hash_name(name),
            "at": time.time(),
            "state": _BEGUN,
            "num_turns": len(chosen.plan.turn_ids),
            "weights_before": self._served_weights(),
            "erased": chosen.to_json(),
        }
        self._write(note)
        return _shown(self._finish(note), user)

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
            self._erasing.remove_undone()
        return True

    def resume(self) -> int:
        """Finish what a killed process left; returns the number of notes finished."""
        self._erasing.remove_undone()
        begun = [note for note in read_receipts(self._home) if note["state"] == _BEGUN]
        for note in begun:
            self._finish(note)
        return len(begun)

    def _choose(self, kind: str, name: str, user: str | None) -> Erased | None:
        if kind == "user":
            return choose_user(self._ledgers, name) if user in (None, name) else None
        plan = self._choose_turns(kind, name, user)
        return None if plan is None else Erased(plan)

    def _choose_turns(self, kind: str, name: str, user: str | None) -> ErasePlan | None:
        serve, turns = self._ledgers.serve, schema.turns
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
        # A note of an earlier release holds the ids itself.
        erased = note.get(
            "erased", {key: note.pop(key) for key in ("turns", "before", "conversations") if key in note}
        )
        done = {**note, "erased": erased, **self._erasing.erase(Erased.from_json(erased))}
        done["back_to"] = {**note.get("back_to", {}), **done["back_to"]}
        done["retraining"] = {
            scope: self._say_how(version, scope) for scope, version in done["back_to"].items()
        }
        renew_index(self._home, self._ledgers.serve)
        sweep_replays(self._home, lambda session: self._ledgers.serve.session(session) is not None)
        receipts = read_receipts(self._home)
        done["backups"] = Backups(self._home).forget(receipts)
        others = [receipt for receipt in receipts if receipt["id"] != done["id"]]
        done["exports"] = Exports(self._home).forget([*others, done], self._ledgers)
        done |= {"state": _DONE, "done_at": time.time(), "weights_after": self._served_weights()}
        self._write(done)
        return done

    def _say_how(self, version: int, scope: Scope) -> str:
        """Whether what is trained from now on equals, bit for bit, training on the rest from the start."""
        repeat = find_repeat(self._ledgers.policies, self._store, version, scope)
        if repeat is None:
            return "bit for bit"
        if pruned := find_pruned(self._ledgers.policies, repeat):
            return f"not bit for bit: {repeat}, but samples of version {pruned[0]} were pruned"
        return f"bit for bit: {repeat}"

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
        folder = self._home / FORGOTTEN
        folder.mkdir(exist_ok=True, mode=0o700)
        write_private(folder / f"{note['id']}.json", note, self._home)


def _shown(receipt: Json, user: str | None) -> Json:
    """Without the ids; only the owner sees other people's scopes and where files are."""
    shown = {name: value for name, value in receipt.items() if name != "erased"}
    if user is None:
        return shown
    weights = ("weights_before", "weights_after")
    own = {name: {s: w for s, w in shown[name].items() if s in shown["back_to"]} for name in weights}
    files = {
        name: dict(Counter(outcome.partition(":")[0] for outcome in shown[name].values()))
        for name in ("backups", "exports")
    }
    return {**shown, **own, **files}
