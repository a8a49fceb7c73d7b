"""Which version answers a request, where that is not simply the one that serves its scope.

*Elsewhere*: under a system prompt that nobody complained under, the base answers (``roles.py``). *Canary*:
for a while after a step was published, some conversations stay with the version before, so that people's
verdicts on both can be compared at the same time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from openclaw_rl.roles import Role, holds
from openclaw_rl.types import BASE_VERSION, ChatRequest, Json, Scope

#: What a version's manifest says where there is none.
_UNKNOWN: Json = {}


@dataclass(frozen=True, slots=True)
class _Known:
    parent: int
    roles: list[Role] | None
    """Beside plain chats; None: it holds everywhere."""


@dataclass(frozen=True, slots=True)
class _Standing:
    version: int
    before: int | None
    """Who goes on answering some conversations, until ``until``."""
    until: float = 0.0


class Choice:
    """``manifest`` is what is written down of a version; read once, when it is first served."""

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
        """What serves now, and since when: noticed when it is first asked for."""
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
    """The same for all requests of a conversation: by who asks, and what was said first.

    Another number for every ``salt``, so that one choice says nothing about another.
    """
    if request.prompt is not None or request.headers.get("x-turn-type", "main") != "main":
        return 1.0  # not somebody's conversation
    first = next((m.get("content") or "" for m in request.messages if m["role"] == "user"), "")
    digest = hashlib.blake2b(
        f"{request.user}\0{first}{salt and chr(0) + salt}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") / 2**32
