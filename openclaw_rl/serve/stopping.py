"""Stop strings in a stream: text is released as soon as it cannot be the start of a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Passes text through until a stop string appears; the stop string itself is not passed."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that was found."""

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def feed(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [(position, stop) for stop in self._stops if (position := self._held.find(stop)) >= 0]
        if found:
            position, self.stopped_by = min(found)
            released, self._held = self._held[:position], ""
            return released
        keep = max(self._partial(stop) for stop in self._stops)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def finish(self) -> str:
        released, self._held = self._held, ""
        return released

    def _partial(self, stop: str) -> int:
        """How many characters at the end could be the start of ``stop``."""
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:size]):
                return size
        return 0
