"""What a disk holds after a power cut, worked out from a record of everything that a program wrote.

A file's bytes are safe once the file was synced; before that, any part of them may be lost, also half a
write. A folder's names are safe once the folder was synced; those that were not are kept in the order in
which they were made, up to some moment, as a file system with a journal does it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

SECTOR = 512
#: Where the program says what it did; read from the record, not from the disk.
ACKS = "acks"


@dataclass(frozen=True)
class Step:
    kind: str
    offset: int
    path: str
    data: bytes


def record(compiler: Path, folder: Path, program: str, *arguments: str) -> list[Step]:
    """Runs a Python program, with ``folder/traced`` as its first argument; all that it does in there."""
    library, traced = folder / "write_trace.so", folder / "traced"
    traced.mkdir()
    source = Path(__file__).with_name("write_trace.c")
    options = ["-Wall", "-shared", "-fPIC", "-O1"]
    subprocess.run([compiler, *options, "-o", library, source, "-ldl", "-lpthread"], check=True)
    tracing = {"LD_PRELOAD": str(library), "TRACE_DIR": str(traced), "TRACE_FILE": str(folder / "trace")}
    command = [sys.executable, "-c", program, str(traced), *arguments]
    subprocess.run(command, env={**os.environ, **tracing}, check=True, stdout=subprocess.DEVNULL)
    return list(read_trace(folder / "trace", traced))


def read_trace(file: Path, folder: Path) -> Iterator[Step]:
    data, at = file.read_bytes(), 0
    while at < len(data):
        kind = chr(data[at])
        offset, length, size = (int.from_bytes(data[at + i : at + i + 8], "little") for i in (1, 9, 17))
        path = data[at + 25 : at + 25 + size].decode()
        at += 25 + size
        body = data[at : at + length] if kind in "wr" else b""
        at += len(body)
        if kind == "r":
            body = _inside(body.decode(), folder).encode()
        yield Step(kind, offset, _inside(path, folder), body)


def _inside(path: str, folder: Path) -> str:
    return "" if path == str(folder) else path.removeprefix(f"{folder}/")


def acked(steps: list[Step]) -> list[str]:
    """The lines that the program had said by then."""
    return b"".join(step.data for step in steps if step.path == ACKS).decode().splitlines()


@dataclass(eq=False)
class _File:
    safe: bytearray = field(default_factory=bytearray)
    waiting: list[Step] = field(default_factory=list)


@dataclass(eq=False)
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    """As programs see them."""
    safe: dict[str, _File | _Folder] = field(default_factory=dict)


#: Entries that change at once; None removes one.
_Change = list[tuple[_Folder, str, "_File | _Folder | None"]]


class Disk:
    def __init__(self) -> None:
        self._root = _Folder()
        self._waiting: list[_Change] = []

    def do(self, step: Step) -> None:
        match step.kind:
            case "c":
                self._change([(*self._place(step.path), _File())])
            case "d":
                self._change([(*self._place(step.path), _Folder())])
            case "u":
                self._change([(*self._place(step.path), None)])
            case "r":
                moved = self._find(step.path)
                old, new = self._place(step.path), self._place(step.data.decode())
                self._change([(*old, None), (*new, moved)])
            case "s":
                self._sync(self._find(step.path))
            case _:
                file = self._find(step.path)
                assert isinstance(file, _File), step.path
                file.waiting.append(step)

    def cut(self, chance: random.Random) -> dict[str, bytes]:
        """The files that are there when the power is back; the disk is of no use afterwards."""
        for change in self._waiting[: chance.randint(0, len(self._waiting))]:
            _apply_names(change)
        return dict(_files(self._root, chance, ""))

    def _find(self, path: str) -> _File | _Folder:
        found: _File | _Folder = self._root
        for part in PurePosixPath(path).parts:
            assert isinstance(found, _Folder), path
            found = found.names[part]
        return found

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder, name = os.path.split(path)
        found = self._find(folder)
        assert isinstance(found, _Folder)
        return found, name

    def _change(self, change: _Change) -> None:
        for folder, name, entry in change:
            folder.names.pop(name, None)
            if entry is not None:
                folder.names[name] = entry
        self._waiting.append(change)

    def _sync(self, synced: _File | _Folder) -> None:
        if isinstance(synced, _File):
            for step in synced.waiting:
                _apply(synced.safe, step, len(step.data))
            synced.waiting.clear()
            return
        here = [change for change in self._waiting if any(folder is synced for folder, _, _ in change)]
        for change in here:
            _apply_names(change)
        self._waiting = [change for change in self._waiting if change not in here]


def _apply_names(change: _Change) -> None:
    for folder, name, entry in change:
        folder.safe.pop(name, None)
        if entry is not None:
            folder.safe[name] = entry


def _files(folder: _Folder, chance: random.Random, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, entry in folder.safe.items():
        if isinstance(entry, _Folder):
            yield from _files(entry, chance, f"{prefix}{name}/")
        elif not name.endswith("-shm") and prefix + name != ACKS:
            yield prefix + name, _survives(entry, chance)


def _survives(file: _File, chance: random.Random) -> bytes:
    content = bytearray(file.safe)
    for step in file.waiting:
        fate = chance.random()
        if fate < 0.4:
            _apply(content, step, len(step.data))
        elif fate < 0.6 and step.kind == "w":
            _apply(content, step, chance.randrange(0, len(step.data) + 1) // SECTOR * SECTOR)
    return bytes(content)


def _apply(content: bytearray, step: Step, length: int) -> None:
    if step.kind == "t":
        del content[step.offset :]
        content.extend(bytes(step.offset - len(content)))
        return
    content.extend(bytes(max(0, step.offset - len(content))))
    content[step.offset : step.offset + length] = step.data[:length]


def after_a_cut(steps: list[Step], at: int, chance: random.Random) -> dict[str, bytes]:
    """The files as a disk might have them if the power went after so many steps."""
    disk = Disk()
    for step in steps[:at]:
        disk.do(step)
    return disk.cut(chance)


def put_back(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
