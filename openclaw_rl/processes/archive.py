"""The file that a backup is: a compressed archive of a data folder, with a checksum of every file.

What can be recreated (the search index, logs, exports, downloaded models) is left out. An archive is written
beside its final name and renamed once it is on disk, so that a kill leaves the old file or the new one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from openclaw_rl import __version__
from openclaw_rl.private_files import sync_folder
from openclaw_rl.types import Json

DATABASES = ("learn.db", "serve.db")
FILES = ("keys.json", "users.json", "config.toml", "former_users.txt", "signed_out.txt", "backups.json")
#: The folder of receipts: what was forgotten, as ids and hashes.
FORGOTTEN = "forgotten"
_FOLDERS = ("policies", FORGOTTEN)
_MANIFEST = "backup.json"
_FORMAT = 1
_MOST_MANIFEST_BYTES = 64 << 20


class DamagedArchive(ValueError):
    """The file is no backup, or not all of one."""


def pack(members: Iterable[tuple[str, Path]], target: Path, facts: Json) -> None:
    """Write these files, each under its name in the archive; ``facts`` go into the manifest."""
    hashes: dict[str, str] = {}
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3, dereference=True) as archive:
            for name, path in members:
                with suppress(FileNotFoundError):  # deleted since it was found
                    hashes[name] = _add(archive, name, path)
            manifest = {**facts, "format": _FORMAT, "version": __version__, "files": hashes}
            _add_manifest(archive, json.dumps(manifest, indent=1).encode())
        file.flush()
        os.fsync(file.fileno())


class _Hashed:
    """A file, and the checksum of what was read of it: it may be replaced or written to meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.hash = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        return data


def _add(archive: tarfile.TarFile, name: str, path: Path) -> str:
    with path.open("rb") as file:
        hashed = _Hashed(file)
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), hashed)
        return hashed.hash.hexdigest()


def _add_manifest(archive: tarfile.TarFile, text: bytes) -> None:
    entry = tarfile.TarInfo(_MANIFEST)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def partial_of(target: Path) -> Path:
    """Where an archive is written before it gets its name."""
    return target.with_name(f".{target.name}.part")


def put_in_place(partial: Path, target: Path) -> None:
    partial.replace(target)
    sync_folder(target.absolute().parent)


def unpack(source: Path, target: Path, home: Path | None = None) -> Json:
    """Into a folder, checked; returns the manifest. Nothing that is in ``home`` already is unpacked."""
    try:
        with tarfile.open(source, "r:gz") as archive:
            facts = _read_manifest(archive, source)
            _refuse(source, home, facts["files"])
            for name, expected in facts["files"].items():
                _write(target / name, _open(archive, name, source))
                if sha256(target / name) != expected:
                    raise DamagedArchive(f"{name} in {source} is damaged: its checksum is wrong")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedArchive(f"{source} is no backup of openclaw-rl, or it is damaged ({error})") from None
    return facts


def read_manifest(source: Path) -> Json:
    try:
        with tarfile.open(source, "r:gz") as archive:
            return _read_manifest(archive, source)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedArchive(f"{source} is no backup of openclaw-rl, or it is damaged ({error})") from None


def _refuse(source: Path, home: Path | None, names: Iterable[str]) -> None:
    """Refuse files that no backup has, and files that are already in the folder."""
    for name in names:
        if not _is_ours(name):
            raise ValueError(f"{source} holds the file {name!r}, which no backup has")
        if home is not None and not is_kept(name) and (home / name).exists():
            raise ValueError(
                f"{home / name} is there already; move it away, or choose another folder with --home"
            )


def is_kept(name: str) -> bool:
    """Whether a folder that is restored into may have such a file already, which then stays."""
    return name == "backups.json" or name.startswith(f"{FORGOTTEN}/")


def _open(archive: tarfile.TarFile, name: str, source: Path) -> IO[bytes]:
    try:
        data = archive.extractfile(name)
    except KeyError:
        data = None
    if data is None:
        raise DamagedArchive(f"{source} is damaged: it lacks {name}")
    return data


def _write(path: Path, data: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(data, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(archive: tarfile.TarFile, source: Path) -> Json:
    try:
        data = archive.extractfile(_MANIFEST)
        facts: Any = json.loads(data.read(_MOST_MANIFEST_BYTES)) if data else None
    except (KeyError, ValueError, RecursionError):
        facts = None
    if not _is_manifest(facts):
        raise DamagedArchive(f"{source} is no backup of openclaw-rl")
    if facts.get("format") != _FORMAT:
        raise ValueError(f"{source} was made by a later version; update openclaw-rl first")
    found: Json = facts
    return found


def _is_manifest(facts: Any) -> bool:
    """Somebody else may have written it: what is read of it is what it should be."""
    known: dict[str, type | tuple[type, ...]] = {
        "format": int, "version": str, "files": dict, "made_at": (int, float), "home": str,
    }  # fmt: skip
    if not isinstance(facts, dict) or (known.keys() - facts.keys()) - {"home"}:  # which early ones lack
        return False
    shaped = all(isinstance(facts[name], kind) for name, kind in known.items() if name in facts)
    return shaped and all(isinstance(value, str) for value in facts["files"].values())


def _is_ours(name: str) -> bool:
    parts = PurePosixPath(name).parts
    in_folder = len(parts) > 1 and parts[0] in _FOLDERS and ".." not in parts
    return name in (*DATABASES, *FILES) or in_folder


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
