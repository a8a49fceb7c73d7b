"""The backups made from a data folder, which forgetting reaches.

``backups.json`` lists where each was written and when, nothing of what is in it. Forgetting applies all
receipts to every listed file that is still there: it is unpacked, erased from like a live data folder, and
replaced in one rename. One that is away is named in the receipt; restoring it applies all receipts as well.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.processes import archive
from openclaw_rl.processes.erasing import Erasing, Receipts
from openclaw_rl.processes.file_list import FileList
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Json

#: Where a backup is unpacked; left by a killed process, it goes when forgetting is resumed.
_PART = ".backup.part"
REWRITTEN, CLEAN, MISSING = "rewritten", "holds nothing of it", "not found"
REACHED = (REWRITTEN, CLEAN)


class Backups(FileList):
    def __init__(self, home: Path) -> None:
        super().__init__(home, "backups")
        self._home = home

    def add(self, file: Path, made_at: float) -> None:
        self.put({"file": str(file.absolute()), "made_at": made_at})

    def forget(self, receipts: list[Json]) -> dict[str, str]:
        """Apply receipts to every backup; returns what became of each file."""
        if not self.exists():
            return {}
        with self.locked():
            return {entry["file"]: self._rewrite(entry, receipts) for entry in self.entries()}

    def _rewrite(self, entry: Json, receipts: list[Json]) -> str:
        file, part = Path(entry["file"]), self._home / _PART
        shutil.rmtree(part, ignore_errors=True)
        try:
            if not file.exists():
                return MISSING
            if archive.read_manifest(file)["made_at"] != entry["made_at"]:
                return "not rewritten: it is not the file that was written there"
            archive.partial_of(file).unlink(missing_ok=True)
            facts = archive.unpack(file, part)
            return _replace(file, part, facts) if erase_again(part, receipts) else CLEAN
        except (OSError, ValueError, sa.exc.SQLAlchemyError) as error:
            return f"not rewritten: {str(error).partition(chr(10))[0]}"
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _replace(file: Path, part: Path, facts: Json) -> str:
    partial = archive.partial_of(file)
    left = ((name, part / name) for name in facts["files"] if (part / name).exists())
    try:
        archive.pack(left, partial, {"made_at": facts["made_at"], "home": facts.get("home", "")})
        archive.put_in_place(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return REWRITTEN


def erase_again(folder: Path, receipts: Iterable[Json]) -> bool:
    """Erase what receipts name from an unpacked backup; whether it held any of it."""
    serve = ServeLedger(sqlite_url(folder / "serve.db"))
    with closing(Ledgers.of(serve, LearnLedger(sqlite_url(folder / "learn.db")))) as ledgers:
        found = Receipts(ledgers).find(receipts)
        if found:
            Erasing(folder, ledgers, PolicyStore(folder / "policies")).erase(found)
    return bool(found)


def read_receipts(home: Path) -> list[Json]:
    """ValueError for one whose id is not its file's name: it would be written under that."""
    return [_read_receipt(path) for path in sorted((home / archive.FORGOTTEN).glob("forget-*.json"))]


def _read_receipt(path: Path) -> Json:
    try:
        receipt: Json = json.loads(path.read_text())
    except (ValueError, RecursionError):
        receipt = {}
    if not isinstance(receipt, dict) or receipt.get("id") != path.stem:
        raise ValueError(f"{path} is no receipt of what was forgotten")
    return receipt
