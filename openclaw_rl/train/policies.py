"""Versions on disk: ``policies/<n>/`` appears atomically, with a manifest that describes it.

The manifest holds a checksum of every weights file. Weights that fail it are never handed out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from openclaw_rl.private_files import sync_folder
from openclaw_rl.roles import Role, with_roles
from openclaw_rl.types import BASE_VERSION, EVERYONE, Json, Weights
from openclaw_rl.types.lora import ADAPTER_FILE

MANIFEST = "manifest.json"
TRAINER_STATE = "trainer.pt"
#: Subfolder for the moving average of the weights, if one is kept.
AVERAGE = "average"


class PolicyStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked: dict[int, tuple[object, str | None]] = {}
        self.fence: Callable[[], int] = lambda: 0
        """Returns this process's lease number, if several hosts learn; raises once the lease has expired."""

    def path(self, version: int) -> Path:
        return self.folder / str(version)

    def exists(self, version: int) -> bool:
        return (self.path(version) / MANIFEST).exists()

    def has_weights(self, version: int) -> bool:
        """Whether the weights are complete and undamaged."""
        return self.problem(version) is None

    def has_state(self, version: int) -> bool:
        """Whether training can go on with the optimizer that made it."""
        if not self.has_weights(version):
            return False
        return "uri" in self.manifest(version) or (self.path(version) / TRAINER_STATE).exists()

    def equals(self, version: int, folder: Path) -> bool:
        """Whether a folder holds this version's weights, to the last bit."""
        known: dict[str, str] = self.manifest(version).get("files", {})
        return known == {str(file.relative_to(folder)): _checksum(file) for file in _weights_in(folder)}

    def problem(self, version: int) -> str | None:
        """Why a version's weights cannot be used; checksums are recomputed only if a file changed."""
        folder = self.path(version)
        if not self.exists(version):
            return (
                f"there are no weights of policy version {version}: they were deleted "
                "(--keep-versions), pruned, or never finished; 'openclaw-rl policy list' shows which are left"
            )
        stamp = _stamp(folder)
        if version not in self._checked or self._checked[version][0] != stamp:
            self._checked[version] = stamp, self._damage(version)
        return self._checked[version][1]

    def _damage(self, version: int) -> str | None:
        folder = self.path(version)
        remedy = "restore it from a backup, or choose another: 'openclaw-rl policy list' shows which are left"
        try:
            manifest = self.manifest(version)
        except ValueError:
            return f"{folder / MANIFEST} is damaged; {remedy}"
        if "uri" in manifest:
            return None
        known: dict[str, str] = manifest.get("files", {})
        for name, checksum in known.items():
            if not (folder / name).exists():
                return f"{folder / name} is missing; {remedy}"
            if _checksum(folder / name) != checksum:
                return f"{folder / name} is damaged: it is not what was written; {remedy}"
        # Versions of earlier releases have no checksums.
        if not (folder / ADAPTER_FILE).exists() and not any(folder.glob("model*.safetensors")):
            return f"{folder} holds no weights; {remedy}"
        return None

    def num_bytes(self, version: int) -> int:
        return sum(file.stat().st_size for file in self.path(version).rglob("*") if file.is_file())

    def weights(self, version: int) -> Weights:
        """Where an engine or a trainer finds them: in the version's folder, or at its manifest's URI.

        ValueError if they are missing or damaged.
        """
        if (problem := self.problem(version)) is not None:
            raise ValueError(problem)
        manifest = self.manifest(version)
        uri = manifest.get("uri")
        scope = manifest.get("scope", EVERYONE)
        return Weights(version, uri, scope) if uri else Weights.in_folder(version, self.path(version), scope)

    def roles_after(self, parent: int, prompts: Iterable[str]) -> list[Role] | None:
        """The system prompts under which a child of ``parent`` serves, if it is trained on turns with these.

        None means any: the parent was trained without that restriction.
        """
        if parent == BASE_VERSION:
            return with_roles([], prompts)
        known = self.manifest(parent).get("roles")
        return None if known is None else with_roles(map(tuple, known), prompts)

    def write(self, version: int, save: Callable[[Path], str | None], manifest: Json) -> Path:
        """``save`` fills a folder, which becomes the version's in one rename, after everything is on disk.

        If ``save`` stores the weights elsewhere, it returns their URI.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Hosts may share the folder, and one that lost its lease may still be writing here.
        token, final = self.fence(), self.path(version)
        work = self.folder / (f".{version}.{token}.part" if token else f".{version}.part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        uri = save(work)
        files = {str(file.relative_to(work)): _checksum(file) for file in _weights_in(work)}
        manifest = {**manifest, "files": files} if files else manifest
        manifest = {**manifest, "fence": token} if token else manifest
        (work / MANIFEST).write_text(json.dumps({**manifest, "uri": uri} if uri else manifest, indent=2))
        _sync(work)
        self.fence()
        shutil.rmtree(final, ignore_errors=True)
        work.rename(final)
        for folder in (self.folder, self.folder.parent):  # the second one's name for the first
            sync_folder(folder)
        for left in self.folder.glob(f".{version}.*.part"):  # left by a host that died
            shutil.rmtree(left, ignore_errors=True)
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
        """Free disk: delete the trainer's state (later training starts a new optimizer), or everything."""
        if only_state:
            (self.path(version) / TRAINER_STATE).unlink(missing_ok=True)
        else:
            # The manifest first: a half-deleted folder must not count as a version.
            (self.path(version) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.path(version), ignore_errors=True)


def _weights_in(folder: Path) -> list[Path]:
    """All files that need a checksum; the trainer's state may be deleted."""
    return sorted(f for f in folder.rglob("*") if f.is_file() and f.name not in (TRAINER_STATE, MANIFEST))


def _checksum(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _stamp(folder: Path) -> list[tuple[str, int, int, int]]:
    files = [(file, file.stat()) for file in _weights_in(folder)]
    manifest = (folder / MANIFEST).stat()
    return [
        (MANIFEST, manifest.st_ino, manifest.st_size, manifest.st_mtime_ns),
        *((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in files),
    ]


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            _sync_file(path)


def _sync_file(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())
