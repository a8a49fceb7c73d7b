"""Versions on disk: ``policies/<n>/`` appears whole or not at all, with a manifest that says what it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.types import EVERYONE, Json, Weights
from openclaw_rl.types.lora import ADAPTER_FILE

MANIFEST = "manifest.json"
TRAINER_STATE = "trainer.pt"
#: Where a version keeps the moving average of the weights, if one is kept.
AVERAGE = "average"


class PolicyStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int) -> Path:
        return self.folder / str(version)

    def exists(self, version: int) -> bool:
        return (self.path(version) / MANIFEST).exists()

    def has_weights(self, version: int) -> bool:
        folder = self.path(version)
        if not self.exists(version):
            return False
        is_here = (folder / ADAPTER_FILE).exists() or any(folder.glob("model*.safetensors"))
        return is_here or "uri" in self.manifest(version)

    def num_bytes(self, version: int) -> int:
        return sum(file.stat().st_size for file in self.path(version).rglob("*") if file.is_file())

    def weights(self, version: int) -> Weights:
        """Where an engine or a trainer finds them: in the version's folder, or where its manifest says."""
        manifest = self.manifest(version) if self.exists(version) else {}
        uri = manifest.get("uri")
        scope = manifest.get("scope", EVERYONE)
        return Weights(version, uri, scope) if uri else Weights.in_folder(version, self.path(version), scope)

    def write(self, version: int, save: Callable[[Path], str | None], manifest: Json) -> Path:
        """``save`` fills a folder; it becomes the version's in one rename, after everything is on disk.

        Where ``save`` put the weights elsewhere, it says their URI.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        work, final = self.folder / f".{version}.part", self.path(version)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        uri = save(work)
        (work / MANIFEST).write_text(json.dumps({**manifest, "uri": uri} if uri else manifest, indent=2))
        _sync(work)
        shutil.rmtree(final, ignore_errors=True)
        work.rename(final)
        _sync_folder(self.folder)
        return final

    def manifest(self, version: int) -> Json:
        found: Json = json.loads((self.path(version) / MANIFEST).read_text())
        return found

    def update_manifest(self, version: int, **facts: object) -> None:
        """Add facts to the manifest, in one rename."""
        target = self.path(version) / MANIFEST
        work = target.with_suffix(".part")
        work.write_text(json.dumps({**self.manifest(version), **facts}, indent=2))
        _sync_file(work)
        work.rename(target)

    def forget(self, version: int, *, only_state: bool) -> None:
        """Free disk: the trainer's state (training goes on from it with a new optimizer), or all of it."""
        if only_state:
            (self.path(version) / TRAINER_STATE).unlink(missing_ok=True)
        else:
            # First: half a folder must not pass for a version.
            (self.path(version) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.path(version), ignore_errors=True)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            _sync_file(file)
    _sync_folder(folder)


def _sync_file(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
