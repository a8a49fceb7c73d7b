"""What the look-in routes and the dashboard ask of the system; whoever wires the server implements it.

``user`` limits an answer to one person's own; None sees everything. An answer of None means that there is no
such thing. Methods that are not async read the database, and are called in threads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from openclaw_rl.serve.compare import Comparer
from openclaw_rl.serve.pulse import Pulse
from openclaw_rl.types import EVERYONE, Json, Scope


class Inspection(Protocol):
    comparer: Comparer | None
    """None where another server answers."""
    learned: Path
    """Metrics of the learn process, written by its Prometheus sink."""

    # --- conversations -----------------------------------------------------------------------

    def sessions(
        self,
        limit: int,
        after: str | None,
        user: str | None,
        query: str | None,
        rated: Literal["good", "bad"] | None = None,
    ) -> Json:
        """Newest first; ``after`` is the last one of the page before, ``query`` searches their words.

        ``rated``: only those with a reply that was found so.
        """

    def session(
        self, session_id: str, user: str | None, limit: int | None, after: str | None, text: bool
    ) -> Json | None:
        """With its turns in order, and with their words where ``text`` says so."""

    def turn(self, turn_id: str, user: str | None) -> Json | None: ...

    def tokens(self, turn_id: str, user: str | None) -> Json | None:
        """A turn word for word, each token with what training did to it."""

    async def record_event(self, turn_id: str | None, kind: str, data: Json) -> None:
        """Store an event about a turn, such as feedback."""

    def replies_of(self, session_id: str, user: str | None) -> dict[str, str] | None:
        """The text of each reply of a session, by its id; None if there is no such session."""

    def feedback_of(self, turn_id: str) -> list[Json]:
        """What people said of a reply by rating it, in order."""

    async def exclude_turn(self, turn_id: str, user: str | None, by: str) -> Json | None:
        """ValueError if it was learned from already."""

    async def exclude_session(self, session_id: str, user: str | None, by: str) -> Json | None: ...

    async def include_turn(self, turn_id: str, user: str | None, by: str) -> Json | None: ...

    async def include_session(self, session_id: str, user: str | None, by: str) -> Json | None: ...

    # --- versions ----------------------------------------------------------------------------

    def policies(self, scope: Scope | None = EVERYONE) -> Json:
        """None: everybody's."""

    def policy(self, version: int, user: str | None) -> Json | None: ...

    def parent(self, scope: Scope = EVERYONE) -> int | None:
        """The version before the one being served."""

    async def promote(self, version: int, why: str, scope: Scope = EVERYONE) -> Json:
        """Serve a version from now on; ValueError or OSError if it cannot be."""

    async def export(self, version: int, kind: str) -> Json:
        """LookupError if there are no weights of it, ValueError if they cannot be exported."""

    def forget(self, kind: str, name: str, user: str | None) -> Json | None:
        """Make a turn, session, wish or user go for good; the receipt."""

    # --- how it goes -------------------------------------------------------------------------

    def learning(self, user: str | None, scope: Scope = EVERYONE) -> Json: ...

    def wishes(self, user: str | None) -> Json:
        """What people asked for, for good, and what became of it."""

    def change_wish(
        self,
        wish_id: str,
        user: str | None,
        *,
        text: str | None,
        paused: bool | None,
        noted: bool | None,
    ) -> bool:
        """Other words, a pause, its end, a note or none; False: no such wish, ValueError: it is over."""

    def take_over(self, scope: Scope = EVERYONE) -> Json | None:
        """How much is answered here in the place of a model elsewhere; None where there is none."""

    def waves(self) -> list[Json]:
        """Sudden waves of complaints by one key in a shared policy, newest first."""

    def decide_wave(self, wave_id: int, learn: bool) -> Json | None:
        """Learn from it, or set it aside; None if none of that number is held."""

    def count_sessions(self) -> dict[str, int]:
        """How many conversations each person had, by name."""

    def results(self) -> Json: ...

    def environments(self, scope: Scope | None) -> list[Json]:
        """How attempts went, in each environment or in one."""

    def attempts(self, scope: Scope, limit: int, before: float | None) -> list[Json]:
        """The newest in an environment, or the newest of those before a moment."""

    def replay(self, name: str, session_id: str, user: str | None) -> Json | None:
        """An episode step by step, where it was kept."""

    def status(self, scope: Scope = EVERYONE, user: str | None = None) -> Json: ...

    def pulse_of(self, scope: Scope, user: str | None) -> Pulse:
        """That status whenever it changes."""

    def readiness(self) -> tuple[bool, Json]:
        """Whether requests can be answered, and how the parts are."""

    def gauges(self) -> dict[str, float]: ...
