"""Files that were written outside the data folder, listed in it so that forgetting reaches them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.private_files import write_private
from openclaw_rl.types import Json


class FileList:
    """``<name>.json`` in the data folder, and the lock that whoever writes or rewrites such a file holds."""

    def __init__(self, home: Path, name: str) -> None:
        self.path, self._lock = home / f"{name}.json", home / f"{name}.lock"

    def exists(self) -> bool:
        return self.path.exists()

    def entries(self) -> list[Json]:
        """Each with ``file``, oldest first."""
        found: list[Json] = json.loads(self.path.read_text()) if self.exists() else []
        return found

    def put(self, entry: Json) -> None:
        """Add a file, or replace its entry."""
        others = [known for known in self.entries() if known["file"] != entry["file"]]
        self.write([*others, entry])

    def write(self, entries: Sequence[Json]) -> None:
        write_private(self.path, entries)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """So that none is written of what is being forgotten."""
        with os.fdopen(os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
