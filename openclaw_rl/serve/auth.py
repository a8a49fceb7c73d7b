"""API keys: one per user, in a file that only its owner may read.

The first start writes a key for the user ``default``. ``OPENCLAW_RL_API_KEY`` fixes that key
without touching the file. Keys are compared in constant time and never logged.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from pathlib import Path

from openclaw_rl.known_names import API_KEYS
from openclaw_rl.private_files import changing, write_private

DEFAULT_USER = "default"
_REMEDY = "repair it, or remove it and restart to get new keys"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class FormerUser(ValueError):
    """Somebody had this name before, and whoever gets it sees their sessions."""


class KeyRing:
    """The keys of one data folder: user -> key."""

    def __init__(self, path: Path, fixed_key: str | None = None, create: bool = True) -> None:
        """``create``: make the owner's key if there is none; readers pass False."""
        self.path = path
        self._fixed = {DEFAULT_USER: fixed_key} if fixed_key else {}
        self.problem: str | None = None
        """Why the file cannot be read; the keys read before stay valid."""
        self._keys: dict[str, str] = {**self._read(), **self._fixed}
        self._stamp = self._file_stamp()
        if create and DEFAULT_USER not in self._keys:
            self.add(DEFAULT_USER)

    @classmethod
    def in_home(cls, home: Path, create: bool = True) -> KeyRing:
        """The key ring of a data folder, with the key from the environment."""
        stated = (os.environ.get(name) for name in API_KEYS)
        return cls(home / "keys.json", next(filter(None, stated), None), create)

    def user_of(self, key: str) -> str | None:
        """The user with this key, or None; changes by another process take effect at once."""
        self.reload()
        found = None
        for user, known in self._keys.items():
            if hmac.compare_digest(known.encode(), key.encode()):
                found = user
        return found

    def key_of(self, user: str) -> str | None:
        return self._keys.get(user)

    @property
    def users(self) -> list[str]:
        return sorted(self._keys)

    def add(self, user: str, same_person: bool = False) -> str:
        """``same_person``: the name was used before, and its former user gets it back with their sessions."""
        if not same_person and user in self._former():
            raise FormerUser(
                f"the name {user!r} was somebody's before, and whoever gets it sees their sessions; "
                "choose another name, or add --same-person if it is the same person"
            )
        if not _USER.fullmatch(user):
            raise ValueError(f"{user!r} is no user name: up to 64 letters, digits and . _ @ - are allowed")
        with changing(self.path):
            stored = self._read()
            if user in stored:
                raise ValueError(f"user {user!r} has a key already; remove it first to make a new one")
            stored[user] = f"sk-ocrl-{secrets.token_urlsafe(24)}"
            write_private(self.path, stored)
        self.reload()
        return stored[user]

    def remove(self, user: str) -> None:
        with changing(self.path):
            stored = self._read()
            if user not in stored:
                raise ValueError(
                    f"no key for user {user!r}; users with a key: {', '.join(sorted(stored)) or 'none'}"
                )
            del stored[user]
            with os.fdopen(os.open(self._former_file, _APPEND, 0o600), "a") as file:
                file.write(f"{user}\n")
                file.flush()
                os.fsync(file.fileno())  # or after a power cut the name may be given to somebody else
            write_private(self.path, stored)
        self.reload()

    @property
    def _former_file(self) -> Path:
        return self.path.with_name("former_users.txt")

    def _former(self) -> set[str]:
        return set(self._former_file.read_text().split()) if self._former_file.exists() else set()

    def reload(self) -> None:
        """Read the file again if it has changed."""
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        try:
            if stamp is None:
                raise ValueError(f"{self.path} is missing; restore it, or restart to get new keys")
            self._keys, self.problem = {**self._read(), **self._fixed}, None
        except (ValueError, OSError) as error:
            self.problem = str(error)
        self._stamp = stamp

    def _file_stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _read(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        try:
            keys = json.loads(self.path.read_text())
        except ValueError as error:
            raise ValueError(f"{self.path} is no key file ({error}); {_REMEDY}") from None
        if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
            raise ValueError(f"{self.path} is no key file (not user names and keys); {_REMEDY}")
        return keys
