"""``openclaw-rl backup | restore``: a data folder in one file; works while the server runs.

A backup holds both databases, the versions, the keys, the settings and the receipts of what was forgotten.
The learn database is copied first: everything it refers to is then in the copy of the serve database, which
only grows. The data folder remembers where a backup was written, so that forgetting reaches it. Restoring
applies all receipts that can be found: what was forgotten after the backup does not come back.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from openclaw_rl.config import Config
from openclaw_rl.private_files import sync_folder, write_private
from openclaw_rl.processes import archive
from openclaw_rl.processes.archive import DATABASES, FILES, FORGOTTEN
from openclaw_rl.processes.backups import Backups, erase_again, read_receipts
from openclaw_rl.processes.parts import open_ledgers, open_store
from openclaw_rl.serve.listen import claim_home
from openclaw_rl.types import Json

#: Where a backup is unpacked and checked before anything is moved into place.
_PART = ".restore.part"
_UNSTATED = "This backup does not say which folder it was made from"
_REMEDY = "nothing was restored; try another backup"


def backup(options: argparse.Namespace, config: Config) -> int:
    if config.ledger.ledger_url:
        raise ValueError("the ledger is not in the data folder (--ledger-url); back that database up itself")
    if not (config.home / "serve.db").exists():
        raise ValueError(f"there is nothing to back up in {config.home}; choose the data folder with --home")
    target = Path(options.file)
    if target.exists():
        raise ValueError(f"{target} exists; choose another name")
    if not (folder := target.absolute().parent).is_dir():
        raise ValueError(f"there is no folder {folder}; make it first, or write the backup elsewhere")
    with Backups(config.home).locked():
        _make(config, target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB; it holds keys and conversations, keep it safe")
    return 0


def _make(config: Config, target: Path) -> None:
    partial, made_at = archive.partial_of(target), time.time()
    partial.unlink(missing_ok=True)  # left by a killed process
    try:
        with TemporaryDirectory(dir=target.absolute().parent) as scratch:
            members = [*_found(config.home, Path(scratch)), *_versions(config)]
            archive.pack(members, partial, {"made_at": made_at, "home": str(config.home.absolute())})
        # Before it has its name: no kill leaves a backup that forgetting does not know.
        Backups(config.home).add(target, made_at)
        archive.put_in_place(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _found(home: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    for name in DATABASES:
        if (home / name).exists():
            _copy_database(home / name, scratch / name)
            yield name, scratch / name
    for name in FILES:
        if (home / name).exists():
            yield name, home / name
    for path in sorted((home / FORGOTTEN).glob("forget-*.json")):
        yield f"{FORGOTTEN}/{path.name}", path


def _copy_database(source: Path, target: Path) -> None:
    """SQLite's online backup: a consistent snapshot while others write."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise ValueError(f"{source} cannot be copied ({error}); no backup was made") from None


def _versions(config: Config) -> Iterator[tuple[str, Path]]:
    folder = open_store(config).folder
    for path in sorted(folder.rglob("*")):
        is_finished = not any(part.endswith(".part") for part in path.relative_to(folder).parts)
        if is_finished and path.is_file() and not path.is_symlink():
            yield f"policies/{path.relative_to(folder).as_posix()}", path


def restore(options: argparse.Namespace, config: Config) -> int:
    """Only into an empty data folder: nothing is overwritten, and a failure leaves nothing behind."""
    if config.ledger.ledger_url:
        raise ValueError("a backup is restored into a data folder, not into --ledger-url; leave that out")
    if any((config.home / name).exists() for name in DATABASES):
        raise ValueError(
            f"{config.home} holds data already; move it away, or choose another folder with --home"
        )
    with closing(claim_home(config.home)):
        part = config.home / _PART
        shutil.rmtree(part, ignore_errors=True)  # left by a killed process
        try:
            facts = _unpack(Path(options.file), config.home, part)
            _check(config.model_copy(update={"home": part}))
            forgotten = _forget(config.home, part, facts)
            _take_over_list(config.home, part, Path(options.file), facts)
            _move(part, config.home)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    print(f"restored into {config.home}, from a backup by version {facts['version']}{forgotten}")
    return 0


def _unpack(source: Path, home: Path, target: Path) -> Json:
    try:
        return archive.unpack(source, target, home)
    except archive.DamagedArchive as error:
        raise ValueError(f"{error}; {_REMEDY}") from None


def _check(config: Config) -> None:
    with closing(open_ledgers(config)) as ledgers:  # migrates databases of an earlier release
        problems = ledgers.serve.check_integrity()
    if problems:
        raise ValueError(f"the ledger in this backup is damaged: {problems[0]}; {_REMEDY}")


def _forget(home: Path, part: Path, facts: Json) -> str:
    """Apply the receipts of this folder and of the one that the backup was made from; a remark on that."""
    stated = facts.get("home")  # earlier releases did not say
    origin = Path(stated or home)
    receipts = {
        receipt["id"]: receipt for folder in (part, origin, home) for receipt in read_receipts(folder)
    }
    (part / FORGOTTEN).mkdir(exist_ok=True, mode=0o700)
    for name, receipt in receipts.items():
        write_private(part / FORGOTTEN / f"{name}.json", receipt)
    erased = bool(receipts) and erase_again(part, receipts.values())
    remark = "; what was forgotten after it was made was erased from it" if erased else ""
    if stated and origin.exists():
        return remark
    where = f"The folder that it was made from, {origin}, is not there" if stated else _UNSTATED
    return (
        f"{remark}\n{where}. If something was forgotten there later, put its folder {FORGOTTEN!r} into an "
        "empty data folder and restore into that."
    )


def _take_over_list(home: Path, part: Path, source: Path, facts: Json) -> None:
    """Forgetting in the restored folder reaches the same backups, and the one that it came from."""
    for entry in Backups(part).entries():
        Backups(home).add(Path(entry["file"]), entry["made_at"])
    Backups(home).add(source, facts["made_at"])


def _move(part: Path, home: Path) -> None:
    """The databases are moved last: with them, the folder counts as one that holds data."""
    files = [path for path in part.rglob("*") if path.is_file()]
    for is_database in (False, True):
        for path in files:
            if path.name.startswith(DATABASES) == is_database:
                _move_file(path, home / path.relative_to(part), home)
        for folder in (*(path for path in home.rglob("*") if path.is_dir()), home, home.parent):
            sync_folder(folder)


def _move_file(path: Path, target: Path, home: Path) -> None:
    if not (archive.is_kept(target.relative_to(home).as_posix()) and target.exists()):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.rename(target)
