"""``openclaw-rl backup | restore``: a data folder in one file; works while the server runs.

A backup holds both databases, the versions, the keys and the settings; what can be recreated (the search
index, logs, exports, downloaded models) is left out. The learn database is copied first: everything it
refers to is then in the copy of the serve database, which only grows.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO

from openclaw_rl import __version__
from openclaw_rl.config import Config
from openclaw_rl.processes.parts import open_ledgers, open_store
from openclaw_rl.serve.listen import claim_home
from openclaw_rl.types import Json

_DATABASES = ("learn.db", "serve.db")
_FILES = ("keys.json", "users.json", "config.toml", "former_users.txt", "signed_out.txt")
_MANIFEST = "backup.json"
_FORMAT = 1
#: Where a backup is unpacked and checked before anything is moved into place.
_PART = ".restore.part"
_REMEDY = "nothing was restored; try another backup"


def backup(options: argparse.Namespace, config: Config) -> int:
    if config.ledger.ledger_url:
        raise ValueError("the ledger is not in the data folder (--ledger-url); back that database up itself")
    if not (config.home / "serve.db").exists():
        raise ValueError(f"there is nothing to back up in {config.home}; choose the data folder with --home")
    target = Path(options.file)
    if target.exists():
        raise ValueError(f"{target} exists; choose another name")
    partial = target.with_name(f".{target.name}.part")
    try:
        with TemporaryDirectory(dir=target.absolute().parent) as scratch:
            _pack(config, Path(scratch), partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB; it holds keys and conversations, keep it safe")
    return 0


def _pack(config: Config, scratch: Path, target: Path) -> None:
    for name in _DATABASES:
        if (config.home / name).exists():
            _copy_database(config.home / name, scratch / name)
    hashes: dict[str, str] = {}
    with tarfile.open(target, "x:gz", compresslevel=3) as archive:
        for name, path in (*_found(config.home, scratch), *_versions(config)):
            hashes[name] = _sha256(path)
            archive.add(path, name, recursive=False)
        facts = {"format": _FORMAT, "version": __version__, "made_at": time.time(), "files": hashes}
        text = json.dumps(facts, indent=1).encode()
        entry = tarfile.TarInfo(_MANIFEST)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


def _copy_database(source: Path, target: Path) -> None:
    """SQLite's online backup: a consistent snapshot while others write."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)


def _found(home: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    for name in _DATABASES:
        if (scratch / name).exists():
            yield name, scratch / name
    for name in _FILES:
        if (home / name).exists():
            yield name, home / name


def _versions(config: Config) -> Iterator[tuple[str, Path]]:
    folder = open_store(config).folder
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield f"policies/{path.relative_to(folder).as_posix()}", path


def restore(options: argparse.Namespace, config: Config) -> int:
    """Only into an empty data folder: nothing is overwritten, and a failure leaves nothing behind."""
    if any((config.home / name).exists() for name in _DATABASES):
        raise ValueError(
            f"{config.home} holds data already; move it away, or choose another folder with --home"
        )
    with closing(claim_home(config.home)):
        part = config.home / _PART
        shutil.rmtree(part, ignore_errors=True)  # left by a killed process
        try:
            facts = _unpack(Path(options.file), config.home, part)
            _check(config.model_copy(update={"home": part}))
            _move(part, config.home)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    print(f"restored into {config.home}, from a backup by version {facts['version']}")
    return 0


def _unpack(source: Path, home: Path, target: Path) -> Json:
    try:
        with tarfile.open(source, "r:gz") as archive:
            facts = _read_manifest(archive, source)
            _refuse(source, home, facts["files"])
            for name, expected in facts["files"].items():
                _write(target / name, _open(archive, name, source))
                if _sha256(target / name) != expected:
                    raise ValueError(f"{name} in {source} is damaged: its checksum is wrong; {_REMEDY}")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        problem = f"{source} is no backup of openclaw-rl, or it is damaged ({error})"
        raise ValueError(f"{problem}; {_REMEDY}") from None
    return facts


def _refuse(source: Path, home: Path, names: Iterable[str]) -> None:
    """Refuse files that no backup has, and files that are already in the folder."""
    for name in names:
        if not _is_ours(name):
            raise ValueError(f"{source} holds the file {name!r}, which no backup has")
        if (home / name).exists():
            raise ValueError(
                f"{home / name} is there already; move it away, or choose another folder with --home"
            )


def _open(archive: tarfile.TarFile, name: str, source: Path) -> IO[bytes]:
    try:
        data = archive.extractfile(name)
    except KeyError:
        data = None
    if data is None:
        raise ValueError(f"{source} is damaged: it lacks {name}; {_REMEDY}")
    return data


def _write(path: Path, data: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(data, file, 1 << 20)


def _check(config: Config) -> None:
    with closing(open_ledgers(config)) as ledgers:  # migrates databases of an earlier release
        problems = ledgers.serve.check_integrity()
    if problems:
        raise ValueError(f"the ledger in this backup is damaged: {problems[0]}; {_REMEDY}")


def _move(part: Path, home: Path) -> None:
    """The databases are moved last: with them, the folder counts as one that holds data."""
    for path in sorted(part.rglob("*"), key=lambda path: path.name.startswith(_DATABASES)):
        if path.is_file():
            target = home / path.relative_to(part)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.rename(target)


def _read_manifest(archive: tarfile.TarFile, source: Path) -> Json:
    try:
        data = archive.extractfile(_MANIFEST)
        facts: Json = json.loads(data.read()) if data else {}
    except (KeyError, ValueError):
        raise ValueError(f"{source} is no backup of openclaw-rl; {_REMEDY}") from None
    if facts.get("format") != _FORMAT:
        raise ValueError(f"{source} was made by a later version; update openclaw-rl first")
    return facts


def _is_ours(name: str) -> bool:
    parts = PurePosixPath(name).parts
    in_folder = len(parts) > 1 and parts[0] == "policies" and ".." not in parts
    return name in (*_DATABASES, *_FILES) or in_folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
