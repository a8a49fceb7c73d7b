"""Browser sessions that were ended by signing out.

Their ids are stored in a file next to the keys, one per line, so that a restart does not make them valid
again and other processes with the same data folder see them at once. An id is useless without its signature,
so it is no secret. Lines are never removed: one sign-out a day adds about 10 KB a year.
"""

from __future__ import annotations

import os
from pathlib import Path


class SignedOut:
    """The ids of the ended sessions of one data folder."""

    def __init__(self, path: Path) -> None:
        self._path, self._ids, self._num_read = path, set[str](), 0

    def add(self, session_id: str) -> None:
        # A single append, so that lines of two processes never mix.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{session_id}\n".encode())
        finally:
            os.close(descriptor)

    def __contains__(self, session_id: str) -> bool:
        self._follow()
        return session_id in self._ids

    def _follow(self) -> None:
        """Read the complete lines written since the last call."""
        try:
            if self._path.stat().st_size <= self._num_read:
                return
        except FileNotFoundError:
            return
        with self._path.open("rb") as file:
            file.seek(self._num_read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._num_read += len(whole)
        self._ids.update(whole.decode().split())
