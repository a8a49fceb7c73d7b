"""The policy versions that a remote server holds for us, its handles for them, and which one serves whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from openclaw_rl.types import BASE_VERSION, EVERYONE, EngineStatus, Scope

H = TypeVar("H")


class LoadedVersions(Generic[H]):
    """``H`` is the server's handle for a version; the base is always loaded."""

    def __init__(self, base: H) -> None:
        self._held: dict[int, H] = {BASE_VERSION: base}
        self._serving: dict[Scope, int] = {}
        self._in_use: Counter[int] = Counter()

    def put(self, version: int, handle: H) -> None:
        self._held[version] = handle

    def get(self, version: int) -> H | None:
        return self._held.get(version)

    @property
    def base(self) -> H:
        return self._held[BASE_VERSION]

    def all(self) -> list[H]:
        return list(self._held.values())

    def resolve(self, version: int | None, scope: Scope = EVERYONE) -> int:
        """The version itself, or if None the one that serves the scope; ValueError if it is not loaded."""
        found = self._serving.get(scope, BASE_VERSION) if version is None else version
        if found not in self._held:
            raise ValueError(f"policy version {found} is not loaded")
        return found

    def serve(self, version: int, scope: Scope) -> None:
        self._serving[scope] = self.resolve(version)

    def remove(self, version: int) -> H | None:
        """The handle, to unload once no request uses it; None if it was not loaded."""
        if version == BASE_VERSION:
            raise ValueError("the base cannot be unloaded")
        if scopes := [scope for scope, serving in self._serving.items() if serving == version]:
            raise ValueError(f"policy version {version} serves {', '.join(scopes)}")
        return self._held.pop(version, None)

    @contextmanager
    def using(self, version: int) -> Iterator[H]:
        self._in_use[version] += 1
        try:
            yield self._held[version]
        finally:
            self._in_use[version] -= 1

    def is_used(self, version: int) -> bool:
        return self._in_use[version] > 0

    def status(self) -> EngineStatus:
        running = sum(self._in_use.values())
        return EngineStatus(running, 0, 0, tuple(sorted(self._held)), dict(self._serving))
