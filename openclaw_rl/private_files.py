"""Small files of the data folder: written whole or not at all, and on disk when the writer returns.

Only their owner may read them. Whoever changes one first takes its folder's lock, so that of two changes at
once, by threads or by processes, none is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold while the file is read, changed and written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_private(final: Path, value: object, *above: Path) -> None:
    """As JSON; new names in ``above`` are on disk, too."""
    work = final.with_suffix(".part")
    with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    work.rename(final)
    for folder in (*above, final.parent):  # a new name is lost in a power cut until its folder is synced
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
