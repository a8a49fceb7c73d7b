"""Which session a request belongs to, without any help from the client.

An explicit id wins. Otherwise the request continues the turn whose reply its history holds,
found by normalised keys: first among recent turns in memory, then by one indexed look-up.
Otherwise it opens a session. Users never share sessions, whatever their messages say.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.capture.content import digest
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.capture.normalise import conversation_keys
from openclaw_rl.types import Message, Placement

_RECENT = 20_000
#: Headers that name a session, best first.
_HEADERS = ("x-session-id", "x-session-affinity", "session_id")
#: OpenClaw numbers the requests of a session in some of them: ``<session id>:<n>``.
_NUMBERED = re.compile(r"^(.+):\d+$")


class SessionFinder:
    """Places requests into sessions; remembers recent turns so that most need no query."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._recent: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._owners: OrderedDict[str, str] = OrderedDict()

    def place(
        self, user: str, messages: Sequence[Message], headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> Placement:
        """Decide the session. Raises only if the ledger cannot be read."""
        explicit = explicit_session(headers, body)
        found = self._find(conversation_keys(user, messages))
        if explicit:
            session_id = self._owned(user, explicit)
            turn_id = found[0] if found and found[1] == session_id else None
            return Placement(session_id, turn_id)
        if found:
            return Placement(found[1], found[0])
        return Placement(new_session_id(), None)

    def _owned(self, user: str, stated: str) -> str:
        """The client's own id, unless that session is another user's."""
        if self._owners.get(stated) is None:
            session = self._ledger.session(stated)
            self._owners[stated] = session["user"] if session else user
            while len(self._owners) > _RECENT:
                self._owners.popitem(last=False)
        return stated if self._owners[stated] == user else f"{stated}-{digest(user.encode()).hex()[:8]}"

    def remember(self, keys: Mapping[str, str], turn_id: str, session_id: str) -> None:
        for key in keys.values():
            self._recent[key] = (turn_id, session_id)
            self._recent.move_to_end(key)
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _find(self, candidates: Sequence[tuple[int, Mapping[str, str]]]) -> tuple[str, str] | None:
        """The newest reply in the history that we know, as (turn id, session id)."""
        if not candidates:
            return None
        if hit := self._recent.get(candidates[0][1]["chain"]):
            return hit
        keys = [key for _, keys in candidates for key in keys.values()]
        stored = {key: self._recent[key] for key in keys if key in self._recent}
        stored = {**self._ledger.find_by_keys(keys), **stored}
        for _, keys_at in candidates:
            for kind in ("chain", "pair"):
                if hit := stored.get(keys_at[kind]):
                    return hit
        return None


def explicit_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The id a client states, if any."""
    for name in _HEADERS:
        if value := headers.get(name):
            numbered = _NUMBERED.match(value)
            return numbered[1] if numbered else value
    metadata = body.get("metadata")
    stated = body.get("session_id") or (metadata.get("session_id") if isinstance(metadata, dict) else None)
    return str(stated) if stated else None


def new_session_id() -> str:
    return f"sess-{secrets.token_hex(8)}"
