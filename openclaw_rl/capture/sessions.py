"""Finds the session a request belongs to, without any help from the client.

An explicit id wins. Otherwise the request continues the turn whose reply its history contains,
found by normalised keys: first among recent turns in memory, then by one indexed look-up.
Otherwise it opens a session. Users never share sessions, whatever their messages say.

If the beginning of a history was cut off, its last messages may occur in several sessions. They then identify
none of them; the rest of the history may. Sessions that are identical word for word are continued one by one,
so that each gets its own next state.

A reply that a client rewrote is recognised by the request it answered and by what is left of the reply; one
that a client left out, by the same request followed by something else.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.capture.content import digest
from openclaw_rl.capture.conversations import owner_of
from openclaw_rl.capture.normalise import (
    ConversationKeys,
    call_key,
    fold_conversation,
    is_rewritten,
    opening_key,
    own_words_keys,
    said_key,
    setting_of,
    shared_key,
)
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.twins import TwinClaim, Twins
from openclaw_rl.types import Message

_RECENT = 20_000
#: Headers that name a session, in order of preference.
_HEADERS = ("x-session-id", "x-session-affinity", "session_id")
#: Names a session too, but the history takes precedence: a resumed session may have a new name.
_CLAUDE_CODE = "x-claude-code-session-id"
#: OpenAI's and Anthropic's clients send the number of earlier attempts at the same request.
_RETRIES = "x-stainless-retry-count"
#: How old the original of a stated retry may be, in seconds.
_RETRY_S = 600.0
#: In some headers OpenClaw numbers the requests of a session: ``<session id>:<n>``.
_NUMBERED = re.compile(r"^(.+):\d+$")
_RUNTIME_ID = re.compile(r"^Runtime: agent=.*\bsessionId=([\w-]{8,64})", re.MULTILINE)
#: Ids that need no escaping in a response header or a URL.
_PLAIN = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class KnownReply:
    turn_id: str
    session_id: str
    index: int
    """The reply's index in the request's messages."""
    left_out: bool = False
    """The client left the reply out; it would come after the message at ``index``."""
    alike: bool = False
    """Whether the request has the same setting (``setting_of``) as the one that was answered."""


@dataclass(frozen=True, slots=True)
class Found:
    session_id: str
    replies: tuple[KnownReply, ...]
    """Our replies in the history, newest first."""
    again: KnownReply | None
    """An earlier turn of this session that answered the very same request."""
    retry: bool = False
    """Whether the client says that it has received no reply to this request yet."""
    claim: TwinClaim | None = None
    own_words: frozenset[int] = frozenset()
    """Indices of user messages that the model wrote, as another agent."""

    @property
    def continues(self) -> str | None:
        """The turn of the newest reply, of whatever kind."""
        return self.replies[0].turn_id if self.replies else None


class SessionFinder:
    """Places requests into sessions; caches recent turns so that most need no query."""

    def __init__(self, ledger: ServeLedger) -> None:
        self._ledger = ledger
        self._recent: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._side: OrderedDict[str, None] = OrderedDict()
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._asked: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._twins = Twins(_RECENT)
        self._is_shared = ledger.db.dialect.name == "postgresql"
        """Other gateways may have answered since, so the ledger takes precedence over this one's cache."""

    def place(
        self,
        user: str,
        messages: Sequence[Message],
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        memory_only: bool = False,
    ) -> Found:
        """Find the session. Raises only if the ledger is queried and cannot be read."""
        keys = fold_conversation(user, messages, setting_of(messages, body))
        stated = explicit_session(headers, body) or runtime_session(messages)
        stated = self._owned(user, stated, memory_only) if stated else None
        known = self._find(user, messages, keys, stated, memory_only)
        newest = known.replies[0].session_id if known.replies else None
        again, retry = known.again, headers.get(_RETRIES, "0") not in ("", "0")
        session_id = stated or self._named(user, newest, messages, headers, body, memory_only) or newest
        if session_id is None and retry:
            session_id = self._tried(keys.asked.asked)
        if session_id is None:
            # The same opening message begins a new session; the same request with history is a repetition.
            asked_again = again and keys.replies and not keys.cut and not known.unsure
            session_id = again.session_id if again and asked_again else new_session_id()
        own = tuple(reply for reply in known.replies if reply.session_id == session_id)
        if own and known.unsure:
            said = {index: said_key(user, session_id, messages[index]) for index in known.unsure}
            own = tuple(sorted((*own, *self._known(said, memory_only)), key=lambda reply: -reply.index))
        if stated and not own and keys.replies:
            own = self._said(user, session_id, messages, keys, memory_only)
        self._asked[keys.asked.asked] = session_id, time.monotonic()
        while len(self._asked) > _RECENT:
            self._asked.popitem(last=False)
        again = again if again and again.session_id == session_id else None
        return Found(session_id, own, again, retry, known.claim, known.own_words)

    def release(self, claim: TwinClaim) -> None:
        """It was a side request, so its session still waits to be continued."""
        self._twins.release(claim)

    def _named(
        self,
        user: str,
        newest: str | None,
        messages: Sequence[Message],
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        memory_only: bool,
    ) -> str | None:
        """The session under a weaker name (cache key, Claude Code's id), unless the history contradicts."""
        cache_key = body.get("prompt_cache_key")
        name = cache_key or headers.get(_CLAUDE_CODE)
        if not isinstance(name, str) or not _PLAIN.fullmatch(name) or newest not in (None, name):
            return None
        # Some applications use one cache key for all conversations. The first session takes the name; a later
        # history without a reply of ours belongs to it if it begins the same and has more than one message.
        taken = name in self._owners or (not memory_only and self._ledger.session(name) is not None)
        session_id = self._owned(user, name, memory_only)
        if newest is None and cache_key and taken:
            opening = opening_key(user, session_id, messages)
            spoken = [message for message in messages if message["role"] != "system"]
            if len(spoken) < 2 or not self._known({0: opening}, memory_only):
                return None
        return session_id

    def _tried(self, asked: str) -> str | None:
        """The session of an earlier attempt at the same request, whether or not it was answered."""
        session_id, at = self._asked.get(asked, (None, 0.0))
        return session_id if time.monotonic() - at < _RETRY_S else None

    def shared(self, keys: Mapping[str, str], session_id: str, memory_only: bool = False) -> dict[str, str]:
        """Extra keys to store with a turn: they mark those of its keys that another session has, too."""
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
        elif chain := keys.get("chain"):
            self._twins.add(chain, turn_id, session_id)
        while len(self._side) > _RECENT:
            self._side.popitem(last=False)
        for key in keys.values():
            self._recent[key] = (turn_id, session_id)
            self._recent.move_to_end(key)
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _owned(self, user: str, stated: str, memory_only: bool) -> str:
        """The client's id, or one derived from it if that session is, or may be, another user's."""
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
            first = session["user"] if session else owner_of(self._ledger, session_id)
            # The first user to name it owns it, even before its first turn is stored.
            owner = self._owners.setdefault(session_id, first or user)
            while len(self._owners) > _RECENT:
                self._owners.popitem(last=False)
        return owner

    def _said(
        self,
        user: str,
        session_id: str,
        messages: Sequence[Message],
        keys: ConversationKeys,
        memory_only: bool,
    ) -> tuple[KnownReply, ...]:
        """Our replies in a session whose history was summarised, so that nothing before them matches."""
        said = {index: said_key(user, session_id, messages[index]) for index, _ in keys.replies}
        return tuple(self._known(said, memory_only))

    def _known(self, at: Mapping[int, str | None], memory_only: bool) -> list[KnownReply]:
        """The turns under these keys, with the index of each reply."""
        lookup = [key for key in at.values() if key]
        if not lookup:
            return []
        known = self._merged(lookup, {} if memory_only else self._ledger.find_by_keys(lookup))
        return [
            KnownReply(*known[key], index) for index, key in at.items() if key is not None and key in known
        ]

    def _find(
        self,
        user: str,
        messages: Sequence[Message],
        keys: ConversationKeys,
        stated: str | None,
        memory_only: bool,
    ) -> _Known:
        calls = {index: call_key(user, messages[index]) for index, _ in keys.replies}
        marks = {key: shared_key(key) for _, at in keys.replies for key in at.values()}
        lookup = [*marks, *marks.values(), *(key for key in calls.values() if key)]
        lookup += [key for asked in keys.before.values() for key in (asked.asked, asked.context)]
        lookup += [keys.asked.asked, *(asked.asked for _, asked in keys.unanswered)]
        own_words = own_words_keys(user, messages)
        lookup += own_words.values()
        known: dict[str, tuple[str, str]] = {}
        newest = keys.replies[0][1]["chain"] if keys.replies else keys.asked.asked
        # If the newest is a side turn, the one before it counts, and may be older than this process.
        is_new = newest not in self._recent or self._recent[newest][0] in self._side
        if not memory_only and (is_new or self._is_shared):
            known = self._ledger.find_by_keys(lookup)
        known = self._merged(lookup, known)
        result = _Known(again=_known_reply(known.get(keys.asked.asked), -1))
        result.own_words = frozenset(index for index, key in own_words.items() if key in known)
        left_out = ((index, known.get(asked.asked)) for index, asked in keys.unanswered)
        result.replies += [KnownReply(*hit, index, True, alike=True) for index, hit in left_out if hit][:1]
        for index, at in keys.replies:
            # A complete history identifies its session; the rest of a cut one may occur in several.
            shared = {name for name, key in at.items() if marks[key] in known}
            named = [name for name in at if name not in shared or (name == "chain" and not keys.cut)]
            key = next((at[name] for name in named if at[name] in known), calls[index])
            hit = known.get(key) if key else None
            # A tool call's id is unique to one turn, even if other sessions have the same text.
            if called := known.get(calls[index] or ""):
                hit = called
            elif hit and key == at["chain"] and not result.replies and not keys.cut:
                hit, result.claim = self._twins.pick(key, keys.asked.context, stated, hit)
            elif hit is None and not shared and index in keys.before:
                asked = keys.before[index]
                answered = (known.get(asked.asked), known.get(asked.context))
                hit = None if memory_only else self._rewritten(messages[index], answered)
            if hit:
                alike = index in keys.before and keys.before[index].asked in known
                result.replies.append(KnownReply(*hit, index, alike=alike))
            elif shared:
                result.unsure.append(index)
        return result

    def _merged(
        self, lookup: Sequence[str], stored: dict[str, tuple[str, str]]
    ) -> dict[str, tuple[str, str]]:
        """Combine the ledger's hits with the cached ones."""
        recent = {key: hit for key in lookup if (hit := self._recent.get(key))}
        return {**recent, **stored} if self._is_shared else {**stored, **recent}

    def _rewritten(
        self, given: Message, answered: Sequence[tuple[str, str] | None]
    ) -> tuple[str, str] | None:
        """The turn that answered this request and whose reply ``given`` is a client's rewritten copy of."""
        for hit in dict.fromkeys(hit for hit in answered if hit):
            turn = self._ledger.load_turn(hit[0])
            if turn is not None and is_rewritten(given, turn.reply):
                return hit
        return None


@dataclass(slots=True)
class _Known:
    """Our turns that a request's history contains."""

    again: KnownReply | None
    """The turn that answered this very request."""
    replies: list[KnownReply] = field(default_factory=list)
    """Newest first."""
    unsure: list[int] = field(default_factory=list)
    """Indices of replies that occur in several sessions."""
    claim: TwinClaim | None = None
    own_words: frozenset[int] = frozenset()


def _known_reply(hit: tuple[str, str] | None, index: int) -> KnownReply | None:
    return KnownReply(*hit, index) if hit else None


def explicit_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The id a client states, if any, made safe to return in a header."""
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
