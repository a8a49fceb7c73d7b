"""Browser sessions that were ended by signing out.

A line each in a file beside the keys, so that a restart does not open them again; another process with the
same data folder sees them at once. An id opens nothing without its signature, so there is nothing to hide.
Lines are never taken out: a person who signs out every day writes 10 KB a year.
"""

from __future__ import annotations

import os
from pathlib import Path


class SignedOut:
    """The ids of the sessions of one data folder that are over."""

    def __init__(self, path: Path) -> None:
        self._path, self._ids, self._num_read = path, set[str](), 0

    def add(self, session_id: str) -> None:
        # One write to the end, so that two processes never mix their lines.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{session_id}\n".encode())
        finally:
            os.close(descriptor)

    def __contains__(self, session_id: str) -> bool:
        self._follow()
        return session_id in self._ids

    def _follow(self) -> None:
        """Take up whole lines that were written since the last time."""
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
