"""Slots for concurrent requests, shared fairly: no user can block the others.

A user may take half of what the others leave free; all of it if there is only one user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Slots:
    def __init__(self, number: int, num_users: Callable[[], int]) -> None:
        self._number, self._num_users = number, num_users
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    def take(self, user: str, number: int) -> str | None:
        """Take slots; returns None, or why they cannot be taken."""
        own = self._taken[user]
        others = self.num_taken - own
        if own + others + number > self._number:
            return f"{own + others} requests are being answered or waiting, the limit"
        if self._num_users() > 1 and own + number > max(1, (self._number - others) // 2):
            return f"{own} requests of yours are being answered or waiting, your share"
        self._taken[user] += number
        return None

    def give_back(self, user: str, number: int) -> None:
        self._taken[user] -= number
        if not self._taken[user]:
            del self._taken[user]
