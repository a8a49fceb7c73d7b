"""The files that ``data export`` and ``policy export`` wrote, which forgetting reaches.

``exports.json`` lists where each was written and its checksum, nothing of what is in it. Forgetting takes
what was forgotten out of every listed file that is still as it was written, in one rename; turns that were
pruned since stay in it. Files that were moved or changed, and weights that learned from what was forgotten,
are named in the receipt.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from openclaw_rl.capture.conversations import export_conversations
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.wish_view import view_wishes
from openclaw_rl.private_files import sync_folder
from openclaw_rl.processes.archive import partial_of, sha256
from openclaw_rl.processes.backups import CLEAN, MISSING, REWRITTEN
from openclaw_rl.processes.erasing import hash_name
from openclaw_rl.processes.file_list import FileList
from openclaw_rl.types import Json

SESSIONS, PERSON, VERSION = "sessions", "person", "version"
_BY_TURN = ("events.jsonl", "verdicts.jsonl", "samples.jsonl")
_MANY = 1_000_000


@dataclass
class Forgotten:
    """What receipts name, in an exported file: by id, or by the hash of a name until a time."""

    receipts: list[Json]
    turns: set[str] = field(init=False)
    before: set[str] = field(init=False)
    """Turns that stay, without what followed them."""

    def __post_init__(self) -> None:
        erased = [receipt.get("erased", receipt) for receipt in self.receipts]
        self.turns = {turn_id for each in erased for turn_id in each.get("turns", ())}
        self.before = {turn_id for each in erased for turn_id in each.get("before", ())} - self.turns
        self._until: dict[tuple[str, str], float] = {}
        for receipt in sorted(self.receipts, key=lambda receipt: receipt["at"]):  # the latest counts
            self._until[receipt["kind"], receipt["of"]] = receipt["at"]

    def holds(self, session: Json, turn: Json) -> bool:
        names = (("user", session["user"]), ("session", session["session_id"]), ("turn", turn["id"]))
        named = [self._until.get((kind, hash_name(name)), 0.0) for kind, name in names]
        return turn["id"] in self.turns or turn["exact"]["created_at"] <= max(named)

    def left_of(self, session: Json) -> Json | None:
        """The session without it; None if nothing is left. Adds the turns that went to ``turns``."""
        kept = [turn for turn in session["turns"] if not self.holds(session, turn)]
        self.turns |= {turn["id"] for turn in session["turns"]} - {turn["id"] for turn in kept}
        cut = [{**turn, "next_state": None} if turn["id"] in self.before else turn for turn in kept]
        return {**session, "turns": cut} if cut else None


class Exports(FileList):
    """Entries also have ``kind`` and ``hashes``, and ``version`` if the file holds weights."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, "exports")

    @contextmanager
    def writing(self, file: Path, kind: str, **facts: int) -> Iterator[None]:
        """Around writing an export. It is listed before: no kill leaves one that forgetting does not know."""
        with self.locked():
            before = self.entries()
            self._put(file, kind, [], facts)
            try:
                yield
            except Exception:
                # Weights are complete or absent, and what was there before still is.
                if kind == VERSION or not file.exists():
                    self.write(before)
                raise
            self._put(file, kind, [sha256(file)] if file.is_file() else [], facts)

    def _put(self, file: Path, kind: str, hashes: list[str], facts: Json) -> None:
        self.put({"file": str(file.absolute()), "kind": kind, "hashes": hashes, **facts})

    def forget(self, receipts: list[Json], ledgers: Ledgers) -> dict[str, str]:
        """Take what receipts name out of every export; returns what became of each file."""
        if not self.exists():
            return {}
        forgotten = Forgotten(receipts)
        with self.locked():
            return {entry["file"]: self._clean(entry, forgotten, ledgers) for entry in self.entries()}

    def _clean(self, entry: Json, forgotten: Forgotten, ledgers: Ledgers) -> str:
        file = Path(entry["file"])
        partial_of(file).unlink(missing_ok=True)
        if not file.exists():
            return MISSING
        if entry["kind"] == VERSION:
            learned = entry["version"] in ledgers.policies.forgotten_versions()
            return f"not deleted: weights of version {entry['version']}" if learned else CLEAN
        try:
            if sha256(file) not in entry["hashes"]:
                return "not rewritten: it is not the file that was written there"
            work = _write_sessions if entry["kind"] == SESSIONS else partial(_write_person, ledgers)
            return self._replace(entry, file, forgotten, work)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            return f"not rewritten: {str(error).partition(chr(10))[0]}"
        finally:
            partial_of(file).unlink(missing_ok=True)

    def _replace(
        self, entry: Json, file: Path, forgotten: Forgotten, write: Callable[[Path, Path, Forgotten], bool]
    ) -> str:
        part = partial_of(file)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        if not write(file, part, forgotten):
            return CLEAN
        with part.open("rb") as written:
            os.fsync(written.fileno())
        # Both hashes, so that after a kill either file is known.
        facts = {name: entry[name] for name in entry if name not in ("file", "kind", "hashes")}
        self._put(file, entry["kind"], [sha256(file), sha256(part)], facts)
        part.replace(file)
        sync_folder(file.absolute().parent)
        return REWRITTEN


def _write_sessions(source: Path, target: Path, forgotten: Forgotten) -> bool:
    """Whether anything was left out."""
    changed = False
    with source.open(encoding="utf-8") as old, target.open("w", encoding="utf-8") as new:
        for line in old:
            kept = _session_line(line, forgotten)
            changed |= kept != line
            new.write(kept)
    return changed


def _session_line(line: str, forgotten: Forgotten) -> str:
    session = json.loads(line)
    left = forgotten.left_of(session)
    if left == session:
        return line
    return "" if left is None else json.dumps(left, separators=(",", ":")) + "\n"


def _write_person(ledgers: Ledgers, source: Path, target: Path, forgotten: Forgotten) -> bool:
    """Conversations and wishes quote turns without naming them all: what is stored of them now is taken."""
    with zipfile.ZipFile(source) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    user = json.loads(parts["settings.json"])["user"]
    new = {**parts, "sessions.jsonl": _each_line(parts, "sessions.jsonl", forgotten)}
    gone = forgotten.turns | forgotten.before
    for name in _BY_TURN:
        rows = parts[name].splitlines(keepends=True)
        new[name] = "".join(row for row in rows if json.loads(row)["turn_id"] not in gone)
    if not _mentions(parts, new, gone):
        return False
    known = {json.loads(line)["id"] for line in parts["conversations.jsonl"].splitlines()}
    stored = [one for one in export_conversations(ledgers.serve, user) if one["id"] in known]
    new["conversations.jsonl"] = "".join(json.dumps(one) + "\n" for one in stored)
    wished = {wish["id"] for wish in json.loads(parts["wishes.json"])}
    wishes = [wish for wish in view_wishes(ledgers, user, "off", _MANY) if wish["id"] in wished]
    new["wishes.json"] = json.dumps(wishes, indent=1)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in new.items():
            archive.writestr(name, text)
    return True


def _each_line(parts: dict[str, str], name: str, forgotten: Forgotten) -> str:
    return "".join(_session_line(line, forgotten) for line in parts[name].splitlines(keepends=True))


def _mentions(parts: dict[str, str], new: dict[str, str], gone: set[str]) -> bool:
    wishes = json.loads(parts["wishes.json"])
    return new != parts or any(gone & {wish["id"], *wish["turns"]} for wish in wishes)
