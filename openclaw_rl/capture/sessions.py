"""Which session a request belongs to, without any help from the client.

An explicit id wins. Otherwise the request continues the turn whose reply its history holds,
found by normalised keys: first among recent turns in memory, then by one indexed look-up.
Otherwise it opens a session. Users never share sessions, whatever their messages say.

Of a history whose beginning was left out, the last words may have been said in several sessions. They
then name none of them; what else is left of the history may.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.capture.content import digest
from openclaw_rl.capture.normalise import (
    ConversationKeys,
    call_key,
    fold_conversation,
    said_key,
    shared_key,
)
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Message

_RECENT = 20_000
#: Headers that name a session, best first.
_HEADERS = ("x-session-id", "x-session-affinity", "session_id")
#: Names a session too, but what the history says goes before it: a resumed one may have a new name.
_CLAUDE_CODE = "x-claude-code-session-id"
#: OpenClaw numbers the requests of a session in some of them: ``<session id>:<n>``.
_NUMBERED = re.compile(r"^(.+):\d+$")
_RUNTIME_ID = re.compile(r"^Runtime: agent=.*\bsessionId=([\w-]{8,64})", re.MULTILINE)
#: What may stand in a response header and a URL as it is.
_PLAIN = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class KnownReply:
    turn_id: str
    session_id: str
    index: int
    """Where the reply stands in the request's messages."""


@dataclass(frozen=True, slots=True)
class Found:
    session_id: str
    replies: tuple[KnownReply, ...]
    """Replies of the history that are ours, newest first."""
    again: KnownReply | None
    """A turn of this session that answered the very same conversation before."""

    @property
    def continues(self) -> str | None:
        """The turn of the newest reply, of whatever kind."""
        return self.replies[0].turn_id if self.replies else None


class SessionFinder:
    """Places requests into sessions; remembers recent turns so that most need no query."""

    def __init__(self, ledger: ServeLedger) -> None:
        self._ledger = ledger
        self._recent: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._side: OrderedDict[str, None] = OrderedDict()
        self._owners: OrderedDict[str, str] = OrderedDict()

    def place(
        self,
        user: str,
        messages: Sequence[Message],
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        memory_only: bool = False,
    ) -> Found:
        """Decide the session. Raises only if the ledger is asked and cannot be read."""
        keys = fold_conversation(user, messages)
        replies, again, unsure = self._find(keys, memory_only)
        if not replies:
            replies = self._called(user, messages, keys, memory_only)
        newest = replies[0].session_id if replies else None
        stated = explicit_session(headers, body) or runtime_session(messages)
        named = body.get("prompt_cache_key") or headers.get(_CLAUDE_CODE)
        if not stated and isinstance(named, str) and newest in (None, named):
            stated = named if _PLAIN.fullmatch(named) else None
        if stated:
            session_id = self._owned(user, stated, memory_only)
        elif newest:
            session_id = newest
        else:
            # The same opening words are a new conversation, unless they are asked once more.
            asked_again = again and keys.replies and not keys.cut and not unsure
            session_id = again.session_id if again and asked_again else new_session_id()
        own = tuple(reply for reply in replies if reply.session_id == session_id)
        if own and unsure:
            said = {index: said_key(user, session_id, messages[index]) for index in unsure}
            own = tuple(sorted((*own, *self._known(said, memory_only)), key=lambda reply: -reply.index))
        if stated and not own and keys.replies:
            own = self._said(user, session_id, messages, keys, memory_only)
        return Found(session_id, own, again if again and again.session_id == session_id else None)

    def shared(self, keys: Mapping[str, str], session_id: str, memory_only: bool = False) -> dict[str, str]:
        """Keys to store beside a turn's own: those of its last words belong to another session, too."""
        words = {name: keys[name] for name in ("pair", "chain", "alone") if name in keys}
        known = {} if memory_only else self._ledger.find_by_keys([*words.values()])
        known |= {key: hit for key in words.values() if (hit := self._recent.get(key))}
        return {
            f"shared_{name}": shared_key(key)
            for name, key in words.items()
            if key in known and known[key][1] != session_id
        }

    def remember(self, keys: Mapping[str, str], turn_id: str, session_id: str, *, side: bool = False) -> None:
        if side:
            self._side[turn_id] = None
        while len(self._side) > _RECENT:
            self._side.popitem(last=False)
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

    def _called(
        self, user: str, messages: Sequence[Message], keys: ConversationKeys, memory_only: bool
    ) -> list[KnownReply]:
        """Replies whose past was summarised, known by the ids of the tools they called."""
        return self._known({i: call_key(user, messages[i]) for i, _ in keys.replies}, memory_only)

    def _said(
        self,
        user: str,
        session_id: str,
        messages: Sequence[Message],
        keys: ConversationKeys,
        memory_only: bool,
    ) -> tuple[KnownReply, ...]:
        """Replies of a session whose past was summarised: nothing before them is as it was."""
        said = {index: said_key(user, session_id, messages[index]) for index, _ in keys.replies}
        return tuple(self._known(said, memory_only))

    def _known(self, at: Mapping[int, str | None], memory_only: bool) -> list[KnownReply]:
        """The turns under these keys, by where their replies stand."""
        lookup = [key for key in at.values() if key]
        if not lookup:
            return []
        known = {} if memory_only else self._ledger.find_by_keys(lookup)
        known |= {key: hit for key in lookup if (hit := self._recent.get(key))}
        return [
            KnownReply(*known[key], index) for index, key in at.items() if key is not None and key in known
        ]

    def _find(
        self, keys: ConversationKeys, memory_only: bool
    ) -> tuple[list[KnownReply], KnownReply | None, list[int]]:
        """The replies of the history that we know, the turn that answered just this request, and where those
        replies stand that several sessions have."""
        lookup = [key for _, at in keys.replies for own in at.values() for key in (own, shared_key(own))]
        known: dict[str, tuple[str, str]] = {}
        newest = keys.replies[0][1]["chain"] if keys.replies else keys.context
        # If the newest is on the side, the one before it counts, and may be older than this process.
        if not memory_only and (newest not in self._recent or self._recent[newest][0] in self._side):
            known = self._ledger.find_by_keys([*lookup, keys.context])
        known |= {key: hit for key in [*lookup, keys.context] if (hit := self._recent.get(key))}
        again = known.get(keys.context)
        replies, unsure = [], []
        for index, at in keys.replies:
            # A whole conversation is known by all that was said; of a cut one, others may have as much.
            shared = {name for name, key in at.items() if shared_key(key) in known}
            named = [name for name in at if name not in shared or (name == "chain" and not keys.cut)]
            if hit := next((known[at[name]] for name in named if at[name] in known), None):
                replies.append(KnownReply(*hit, index))
            elif shared:
                unsure.append(index)
        return replies, KnownReply(*again, -1) if again else None, unsure


def explicit_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The id a client states, if any, fit to be sent back in a header."""
    stated = _stated(headers, body)
    if not stated or _PLAIN.fullmatch(stated):
        return stated
    return f"sess-{_short_hash(stated)}"


def runtime_session(messages: Sequence[Message]) -> str | None:
    """The id OpenClaw writes into the first message of a conversation."""
    first = next((message for message in messages if message["role"] == "user"), None)
    found = _RUNTIME_ID.search(first.get("content") or "") if first else None
    return found[1] if found else None


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
