"""``openclaw-rl backup | restore``: a data folder in one file, taken while the server runs.

A backup holds both databases, the versions, the keys and the settings; what can be made again (the search
index, logs, exports, downloaded models) is left out. The learn database is copied first: whatever it
mentions is then in the copy of the other one, which only grows.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from openclaw_rl import __version__
from openclaw_rl.config import Config
from openclaw_rl.processes.parts import open_ledgers, open_store
from openclaw_rl.serve.listen import claim_home
from openclaw_rl.types import Json

_DATABASES = ("learn.db", "serve.db")
_FILES = ("keys.json", "users.json", "config.toml", "former_users.txt", "signed_out.txt")
_MANIFEST = "backup.json"
_FORMAT = 1


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
    """SQLite's own online copy: one consistent moment, while others write."""
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
    """Into an empty data folder only: nothing is ever overwritten."""
    if any((config.home / name).exists() for name in _DATABASES):
        raise ValueError(
            f"{config.home} holds data already; move it away, or choose another folder with --home"
        )
    with closing(claim_home(config.home)):
        written: list[Path] = []
        try:
            facts = _unpack(Path(options.file), config.home, written)
            _check(config)
        except BaseException:
            _take_back(written)  # so that another backup can be restored here
            raise
    print(f"restored into {config.home}, from a backup by version {facts['version']}")
    return 0


def _check(config: Config) -> None:
    with closing(open_ledgers(config)) as ledgers:  # brings those of an earlier release up to date
        problems = ledgers.serve.check_integrity()
    if problems:
        raise ValueError(f"the restored ledger is damaged: {problems[0]}")


def _take_back(written: list[Path]) -> None:
    for path in written:
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)


def _unpack(source: Path, home: Path, written: list[Path]) -> Json:
    """``written`` gets each file as soon as it is there."""
    with tarfile.open(source, "r:gz") as archive:
        facts = _read_manifest(archive, source)
        for name, expected in facts["files"].items():
            if not _is_ours(name):
                raise ValueError(f"{source} holds the file {name!r}, which no backup has")
            data = archive.extractfile(name)
            if data is None:
                raise ValueError(f"{source} lacks {name}")
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                written.append(path)
                while piece := data.read(1 << 20):
                    file.write(piece)
            if _sha256(path) != expected:
                raise ValueError(f"{name} in {source} is damaged: its checksum is wrong")
    return facts


def _read_manifest(archive: tarfile.TarFile, source: Path) -> Json:
    try:
        data = archive.extractfile(_MANIFEST)
        facts: Json = json.loads(data.read()) if data else {}
    except (KeyError, ValueError):
        raise ValueError(f"{source} is no backup of openclaw-rl") from None
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
