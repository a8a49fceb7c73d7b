"""Picks the version that answers a request if it is not the one that serves its scope.

*Elsewhere*: under a system prompt without complaints, the base answers (``roles.py``). *Canary*: for a while
after a step was published, some conversations stay with the previous version, so that verdicts on both
versions can be compared over the same period.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from openclaw_rl.roles import Role, holds
from openclaw_rl.types import BASE_VERSION, ChatRequest, Json, Scope

#: Stands in for the base's manifest, which does not exist.
_UNKNOWN: Json = {}


@dataclass(frozen=True, slots=True)
class _Known:
    parent: int
    roles: list[Role] | None
    """The roles it applies to, besides plain chats; None: it applies everywhere."""


@dataclass(frozen=True, slots=True)
class _Standing:
    version: int
    before: int | None
    """The previous version, which answers some conversations until ``until`` (monotonic clock)."""
    until: float = 0.0


class VersionChoice:
    """``manifest`` reads a version's manifest; called once per version, when it is first served."""

    def __init__(
        self,
        manifest: Callable[[int], Json],
        elsewhere: bool = True,
        share: float = 0.0,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manifest, self._elsewhere = manifest, elsewhere
        self._share, self._seconds, self._clock = share, seconds, clock
        self._known: dict[int, _Known] = {}
        self._standing: dict[Scope, _Standing] = {}

    def instead(self, request: ChatRequest, serving: int, loaded: Container[int]) -> int | None:
        """The version that answers instead of the serving one; None if that one does."""
        standing = self._look(request.scope, serving)
        if serving != BASE_VERSION and self._elsewhere and request.prompt is None:
            roles = self._facts(serving).roles
            if roles is not None and not holds(roles, request.system):
                return BASE_VERSION
        stays = standing.before is not None and self._clock() < standing.until
        if stays and standing.before in loaded and fraction(request) < self._share:
            return standing.before
        return None

    def _look(self, scope: Scope, serving: int) -> _Standing:
        """The serving version and its predecessor; a switch is noticed at the first request after it."""
        known = self._standing.get(scope)
        if known is None or known.version != serving:
            stepped = known is not None and self._facts(serving).parent == known.version
            before = known.version if known is not None and stepped else None
            known = self._standing[scope] = _Standing(serving, before, self._clock() + self._seconds)
        return known

    def _facts(self, version: int) -> _Known:
        if version not in self._known:
            found = _UNKNOWN if version == BASE_VERSION else self._manifest(version)
            roles = found.get("roles")
            read = None if roles is None else [tuple(role) for role in roles]
            self._known[version] = _Known(found.get("parent", -1), read)
        return self._known[version]


def fraction(request: ChatRequest, salt: str = "") -> float:
    """A number in [0, 1), the same for all requests of a conversation: a hash of user and first message.

    Each ``salt`` gives an independent number, so that choices by different salts are not correlated.
    """
    if request.prompt is not None or request.headers.get("x-turn-type", "main") != "main":
        return 1.0  # not a user's conversation
    first = next((m.get("content") or "" for m in request.messages if m["role"] == "user"), "")
    digest = hashlib.blake2b(
        f"{request.user}\0{first}{salt and chr(0) + salt}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") / 2**32
