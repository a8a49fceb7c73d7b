"""Versions in object storage: ``--policies s3://bucket/folder``, with a copy in the data folder to load from.

Works with any storage that fsspec supports; its driver (s3fs, gcsfs, adlfs) must be installed separately. A
version exists once its manifest does, which is written last. Files are checked against the manifest's
checksums like those of any other version, so a partial or mixed one is never served.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.train.policies import MANIFEST, TRAINER_STATE, PolicyStore
from openclaw_rl.types import Json


class MirroredStore(PolicyStore):
    """``folder`` is the local copy, ``url`` the storage that all hosts share. Storage errors are OSErrors."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self._files, self._root = _open(url)

    def exists(self, version: int) -> bool:
        """Downloads the version if it is only in the storage."""
        if super().exists(version):
            return True
        if not self._files.exists(self._remote(version, MANIFEST)):
            return False
        self._fetch(version)
        return True

    def _remote(self, version: int, name: str = "") -> str:
        return f"{self._root}/{version}/{name}".rstrip("/")

    def _fetch(self, version: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        work = self.folder / f".{version}.fetched"
        shutil.rmtree(work, ignore_errors=True)
        root = self._remote(version)
        for remote in self._files.find(root):
            target = work / remote.rpartition(f"{root}/")[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(remote, str(target))
        work.rename(self.path(version))

    def write(self, version: int, save: Callable[[Path], str | None], manifest: Json) -> Path:
        folder = super().write(version, save, manifest)
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != MANIFEST:
                self._put(version, file, str(file.relative_to(folder)))
        self.fence()
        self._put(version, folder / MANIFEST, MANIFEST)
        return folder

    def _put(self, version: int, file: Path, name: str) -> None:
        self._files.makedirs(self._remote(version, name).rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), self._remote(version, name))

    def update_manifest(self, version: int, **facts: object) -> None:
        self.exists(version)
        super().update_manifest(version, **facts)
        self._put(version, self.path(version) / MANIFEST, MANIFEST)

    def forget(self, version: int, *, only_state: bool) -> None:
        super().forget(version, only_state=only_state)
        # The manifest first: a half-deleted version must not count as one.
        for name in [TRAINER_STATE] if only_state else [MANIFEST, ""]:
            if self._files.exists(remote := self._remote(version, name)):
                self._files.rm(remote, recursive=not name)

    def manifest(self, version: int) -> Json:
        self.exists(version)
        return super().manifest(version)


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"--policies {json.dumps(url)}: {error}") from None
    return files, str(root).rstrip("/")
