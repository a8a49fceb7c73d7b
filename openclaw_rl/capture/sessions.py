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
#: What may stand in a response header and a URL as it is.
_PLAIN = re.compile(r"[\x21-\x7e]{1,200}")


class SessionFinder:
    """Places requests into sessions; remembers recent turns so that most need no query."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._recent: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._owners: OrderedDict[str, str] = OrderedDict()

    def place(
        self,
        user: str,
        messages: Sequence[Message],
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        memory_only: bool = False,
    ) -> Placement:
        """Decide the session. Raises only if the ledger is asked and cannot be read."""
        stated = explicit_session(headers, body)
        session_id = self._owned(user, stated, memory_only) if stated else None
        found = self._find(conversation_keys(user, messages), memory_only)
        if session_id:
            return Placement(session_id, found[0] if found and found[1] == session_id else None)
        if found:
            return Placement(found[1], found[0])
        return Placement(new_session_id(), None)

    def remember(self, keys: Mapping[str, str], turn_id: str, session_id: str) -> None:
        for key in keys.values():
            self._recent[key] = (turn_id, session_id)
            self._recent.move_to_end(key)
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _owned(self, user: str, stated: str, memory_only: bool) -> str:
        """The client's own id; derived from it if that session is, or may be, another user's."""
        if memory_only:
            known = self._owners.get(stated) == user
            return stated if known else f"{stated}-{_short_hash(user, stated)}"
        session_id = stated
        while self._owner(session_id, user) != user:
            session_id = f"{stated}-{_short_hash(user, session_id)}"
        return session_id

    def _owner(self, session_id: str, user: str) -> str:
        owner = self._owners.get(session_id)
        if owner is None:
            session = self._ledger.session(session_id)
            # The first to name it owns it, even before its first turn is stored.
            owner = self._owners.setdefault(session_id, session["user"] if session else user)
            while len(self._owners) > _RECENT:
                self._owners.popitem(last=False)
        return owner

    def _find(
        self, candidates: Sequence[tuple[int, Mapping[str, str]]], memory_only: bool
    ) -> tuple[str, str] | None:
        """The newest reply in the history that we know, as (turn id, session id)."""
        if not candidates:
            return None
        if hit := self._recent.get(candidates[0][1]["chain"]):
            return hit
        keys = [key for _, keys in candidates for key in keys.values()]
        known = {} if memory_only else self._ledger.find_by_keys(keys)
        known |= {key: hit for key in keys if (hit := self._recent.get(key))}
        for _, keys_at in candidates:
            for kind in ("chain", "pair"):
                if hit := known.get(keys_at[kind]):
                    return hit
        return None


def explicit_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The id a client states, if any, fit to be sent back in a header."""
    stated = _stated(headers, body)
    if not stated or _PLAIN.fullmatch(stated):
        return stated
    return f"sess-{_short_hash(stated)}"


def _stated(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    for name in _HEADERS:
        if value := headers.get(name):
            numbered = _NUMBERED.match(value) if name != "x-session-id" else None
            return numbered[1] if numbered else value
    metadata = body.get("metadata")
    for fields in (body, metadata if isinstance(metadata, Mapping) else {}):
        if isinstance(stated := fields.get("session_id"), str | int) and stated:
            return str(stated)
    return None


def _short_hash(*parts: str) -> str:
    return digest(*(part.encode("utf-8", "surrogatepass") for part in parts)).hex()[:16]


def new_session_id() -> str:
    return f"sess-{secrets.token_hex(8)}"
