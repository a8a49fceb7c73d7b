"""What the inspection routes and the dashboard need from the system; implemented where the server is wired.

``user`` restricts a result to that user's own data; None means everything. A result of None means not found.
Methods that are not async read the database and are called in threads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from openclaw_rl.serve.compare import Comparer
from openclaw_rl.serve.pulse import Pulse
from openclaw_rl.types import EVERYONE, Json, Message, Scope


class Inspection(Protocol):
    comparer: Comparer | None
    """None if another server answers."""
    learned: Path
    """File with the learn process's metrics, written by its Prometheus sink."""

    # --- conversations -----------------------------------------------------------------------

    def sessions(
        self,
        limit: int,
        after: str | None,
        user: str | None,
        query: str | None,
        rated: Literal["good", "bad"] | None = None,
    ) -> Json:
        """Newest first; ``after`` is the last id of the previous page, ``query`` searches the texts.

        ``rated``: only sessions with a reply judged good or bad.
        """

    def session(
        self, session_id: str, user: str | None, limit: int | None, after: str | None, text: bool
    ) -> Json | None:
        """The session with its turns in order; ``text`` includes their texts."""

    def turn(self, turn_id: str, user: str | None) -> Json | None: ...

    def tokens(self, turn_id: str, user: str | None) -> Json | None:
        """A turn in detail, each token with its training signal."""

    async def record_event(
        self, turn_id: str | None, kind: str, data: Json, messages: list[Message] | None = None
    ) -> None:
        """Store an event about a turn, such as feedback; ``messages``: what followed its reply."""

    def replies_of(self, session_id: str, user: str | None) -> dict[str, str] | None:
        """Turn id -> text of its reply, for a session; None if there is no such session."""

    def feedback_of(self, turn_id: str) -> list[Json]:
        """The feedback events on a reply, in order."""

    async def exclude_turn(self, turn_id: str, user: str | None, by: str) -> Json | None:
        """ValueError if it was already trained on."""

    async def exclude_session(self, session_id: str, user: str | None, by: str) -> Json | None: ...

    async def include_turn(self, turn_id: str, user: str | None, by: str) -> Json | None: ...

    async def include_session(self, session_id: str, user: str | None, by: str) -> Json | None: ...

    # --- versions ----------------------------------------------------------------------------

    def policies(self, scope: Scope | None = EVERYONE) -> Json:
        """``scope`` None: the policies of all scopes."""

    def policy(self, version: int, user: str | None) -> Json | None: ...

    def parent(self, scope: Scope = EVERYONE) -> int | None:
        """The parent of the serving version."""

    async def promote(self, version: int, why: str, scope: Scope = EVERYONE) -> Json:
        """Serve a version from now on; ValueError or OSError if that is not possible."""

    async def export(self, version: int, kind: str) -> Json:
        """LookupError if its weights are missing, ValueError if they cannot be exported."""

    def forget(self, kind: str, name: str, user: str | None) -> Json | None:
        """Delete a turn, session, wish or user permanently; returns the receipt."""

    # --- progress and state ------------------------------------------------------------------

    def learning(self, user: str | None, scope: Scope = EVERYONE) -> Json: ...

    def wishes(self, user: str | None) -> Json:
        """Users' wishes and their state."""

    def change_wish(
        self,
        wish_id: str,
        user: str | None,
        *,
        text: str | None,
        paused: bool | None,
        noted: bool | None,
    ) -> bool:
        """Change its text, pause or resume it, or set its note; False: not found; ValueError: ended."""

    def take_over(self, scope: Scope = EVERYONE) -> Json | None:
        """The share answered locally instead of by the upstream model; None without an upstream."""

    def waves(self) -> list[Json]:
        """Sudden waves of complaints from one key in a shared policy, newest first."""

    def decide_wave(self, wave_id: int, learn: bool) -> Json | None:
        """Train on a held wave or discard it; None if no wave with this id is held."""

    def count_sessions(self) -> dict[str, int]:
        """How many conversations each person had, by name."""

    def results(self) -> Json: ...

    def environments(self, scope: Scope | None) -> list[Json]:
        """Results of attempts, for each environment or for one."""

    def attempts(self, scope: Scope, limit: int, before: float | None) -> list[Json]:
        """The newest attempts in an environment, optionally before a time."""

    def replay(self, name: str, session_id: str, user: str | None) -> Json | None:
        """An episode step by step; None if its replay was not kept."""

    def status(self, scope: Scope = EVERYONE, user: str | None = None) -> Json: ...

    def pulse_of(self, scope: Scope, user: str | None) -> Pulse:
        """Sends that status whenever it changes."""

    def readiness(self) -> tuple[bool, Json]:
        """Whether requests can be answered, and the state of each part."""

    def gauges(self) -> dict[str, float]: ...
