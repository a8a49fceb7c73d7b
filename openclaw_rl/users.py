"""The owner's decisions about users: their group, their limits, and whether they are recorded.

A small file in the data folder. It is read again when it changes, so that decisions take effect at once in
every process. Keys are in ``keys.json``; a user without an entry here has no group and no limits.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.errors import written_by_newer
from openclaw_rl.private_files import changing, write_private

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class Person:
    group: str | None = None
    """The members of a group share one policy."""
    off_the_record: bool = False
    """Nothing of this user is stored."""
    environment: str | None = None
    """Set if this is an agent in this environment, not a person; all agents of it share one policy."""
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Prompts and replies together."""


class Users:
    """The decisions of one data folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._people: dict[str, Person] = {}

    @classmethod
    def in_home(cls, home: Path) -> Users:
        return cls(home / "users.json")

    def of(self, user: str) -> Person:
        self._reload()
        return self._people.get(user, Person())

    def change(self, user: str, **changes: Any) -> Person:
        """Change the named fields; ValueError for an invalid value."""
        with changing(self.path):
            person = _checked(replace(self.of(user), **changes))
            self._write({**self._people, user: person})
        return person

    def forget(self, user: str) -> None:
        with changing(self.path):
            self._reload()
            self._write({name: person for name, person in self._people.items() if name != user})

    def _reload(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._people, self._stamp = {}, None
            return
        stamp = status.st_ino, status.st_mtime_ns
        if stamp != self._stamp:
            self._people, self._stamp = self._read(), stamp

    def _read(self) -> dict[str, Person]:
        try:
            stored = json.loads(self.path.read_text())
            unknown = {name for facts in stored.values() for name in facts} - set(Person.__slots__)
            if not unknown:
                return {user: Person(**facts) for user, facts in stored.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} cannot be read ({error}); repair it, or remove it") from None
        raise written_by_newer(self.path, ", ".join(sorted(map(str, unknown))))

    def _write(self, people: dict[str, Person]) -> None:
        stored = {user: asdict(person) for user, person in people.items() if person != Person()}
        write_private(self.path, stored)


def _checked(person: Person) -> Person:
    if person.group is not None and not _GROUP.fullmatch(person.group):
        raise ValueError(f"{person.group!r} is no group: up to 64 letters, digits and . _ @ - are allowed")
    if person.environment is not None and not _GROUP.fullmatch(person.environment):
        raise ValueError(
            f"{person.environment!r} is no environment: up to 64 letters, digits and . _ @ - are allowed"
        )
    limits = (person.requests_per_minute, person.tokens_per_day)
    if any(limit is not None and limit < 1 for limit in limits):
        raise ValueError("a limit is 1 or more; 'none' takes it away")
    return person
