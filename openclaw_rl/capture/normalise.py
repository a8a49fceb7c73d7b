"""Normalises conversations, so that their keys do not depend on how a client resends them.

Clients rewrite ids, re-serialise tool arguments, strip thinking, prefix timestamps and inject
context that is gone in the next request. Keys computed here ignore all of that, so the same
conversation gives the same keys every time it is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from openclaw_rl.capture.content import digest, to_json
from openclaw_rl.types import Message

#: What OpenClaw, Claude Code, Codex and graph frameworks inject into a user's message: beginning -> end.
_INJECTED = {
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>": "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
    "<system-reminder>": "</system-reminder>",
    "<reminder>": "</reminder>",
    "<environment_context>": "</environment_context>",
}
_INJECTIONS = re.compile("|".join(_INJECTED))
_THINKING = re.compile("<think>")
#: OpenClaw's whole message after a reply with nothing to show; it is missing from later histories.
_UNANSWERED = re.compile(
    r"\A(?:\[[^\]\n]*\] )?The previous (?:attempt|assistant turn)\b[^.]{0,80}"
    r"\bdid not produce a user-visible answer\. Continue .*\Z",
    re.DOTALL,
)
#: OpenClaw resends an unanswered message with these around it; later histories hold the original message.
_REPEATED = re.compile(
    r"\[Queued user message from a previous active turn;[^\]\n]{0,500}\]\n"
    r"|\nContinue the current task from the existing transcript, preserving completed work\..*\Z",
    re.DOTALL,
)
#: What every text contains that this pattern matches: substrings are found far faster.
_REPEATED_HINTS = ("[Queued user message from a previous active turn;", "\nContinue the current task from")
#: "[Mon 2026-09-07 10:11 UTC] " and similar, at the start of a user message.
_TIMESTAMP = re.compile(r"^\s*\[[^\]\n]{0,200}\d{1,2}:\d{2}[^\]\n]{0,200}\]\s*")
#: Tool call ids of this server, without the underscores, which some clients remove.
_OWN_CALL = re.compile(r"call[0-9a-z]{16,}t\d+")
#: The same in a call that a client wrote as text.
_WRITTEN_CALL = re.compile(r"\bcall_?[0-9a-z]{16,}t\d+\b")
_RUNTIME = re.compile(r"^Runtime: agent=.*$", re.MULTILINE)
#: Times, counters and ids, which change from request to request of one agent.
_NUMBERED_WORD = re.compile(r"(?<!\w)[^\W\d]*\d\w*")
#: Folded instructions kept in memory, and the length in characters above which they are not kept.
_KEPT, _LONG = 64, 100_000
#: Requests rarely drop more than this many replies from the end of their history.
_MAX_REPLIES = 8
#: How clients mark truncated text, in its last characters; and the length in characters below which a text
#: alone is no evidence.
_CUT_MARK = re.compile(r"(?:\.{3,}|…|[\[(<][^\])>]{0,40}(?:truncat|omitt|cut)[^\])>]{0,40}[\])>])\s*\Z")
_MARK, _SHORT = 120, 16
#: How AutoGen names the speaker in the text; and the length in characters below which users may say the same.
_SPEAKER = re.compile(r"\A[\w .-]{1,60} said:\n")
_COMMON = 32
#: Replies that a client rewrote or left out are searched among this many of the newest.
_MAX_CHANGED = 3


def strip_ephemeral(text: str) -> str:
    """The text without context that the client injected for one request only."""
    text = _without_context(text)
    if any(hint in text for hint in _REPEATED_HINTS):
        text = _REPEATED.sub("", text)
    return text.strip()


def _without_context(text: str) -> str:
    text = _UNANSWERED.sub("", text) if "did not produce a user-visible answer" in text else text
    return _cut_out(text, _INJECTIONS, _INJECTED)


def _cut_out(text: str, begins: re.Pattern[str], ends: Mapping[str, str]) -> str:
    """Without each beginning and what follows up to its end. In one pass, whatever the text is: as a pattern,
    thousands of beginnings without an end would each be followed to the end of the text."""
    kept, at, position = [], 0, 0
    endless: set[str] = set()
    while found := begins.search(text, position):
        begin, position = found.group(), found.end()
        stop = -1 if begin in endless else text.find(ends[begin], position)
        if stop < 0:
            endless.add(begin)
            continue
        kept.append(text[at : found.start()])
        at = position = stop + len(ends[begin])
    return "".join([*kept, text[at:]]) if kept else text


def _without_thinking(text: str) -> str:
    return _cut_out(text, _THINKING, {"<think>": "</think>"})


def is_ephemeral(message: Message) -> bool:
    """Whether a message holds nothing but injected context."""
    text = message.get("content") or ""
    return message["role"] == "user" and _without_context(text) != text and not strip_ephemeral(text)


def meaning(message: Message) -> bytes:
    """One message normalised to role, text and tool calls; empty if nothing is left of it."""
    text = _without_thinking(strip_ephemeral(message.get("content") or ""))
    if message["role"] == "user":
        stamp = _TIMESTAMP.match(text)
        text = text[stamp.end() :] if stamp else text
        text = _RUNTIME.sub("", text) if "Runtime: agent=" in text else text
    calls = [(call["name"], _fold_arguments(call["arguments"])) for call in message.get("tool_calls") or []]
    folded = " ".join(text.split())
    if not folded and not calls:
        return b""
    return _encode(to_json([message["role"], folded, calls]))


def _fold_arguments(arguments: str) -> str:
    """Arguments with numbers as JavaScript reads them, for clients that parse and re-serialise them."""
    try:
        value = json.loads(arguments, parse_int=_number, parse_float=_number)
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return " ".join(arguments.split())


def _number(text: str) -> float:
    return float(text) + 0.0  # minus zero becomes zero


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """A conversation up to where a reply is wanted. Two requests with the same one ask for the same reply."""

    asked: str
    """Includes the setting (``setting_of``): requests with the same key ask for the same reply."""
    context: str
    """Ignores the setting."""


@dataclass(frozen=True, slots=True)
class ConversationKeys:
    """Look-up keys of a conversation and of its replies."""

    replies: list[tuple[int, dict[str, str]]]
    """Newest first: the index of an assistant message and the keys a turn would have there."""
    asked: RequestKeys
    cut: bool
    """It does not begin with a user's words, so something before it was left out."""
    before: dict[int, RequestKeys]
    """What the newest replies answered, by where they stand: a client may have rewritten them."""
    unanswered: list[tuple[int, RequestKeys]]
    """Newest first: what a reply would have answered that was left out after the message at an index."""


def fold_conversation(user: str, messages: Sequence[Message], setting: bytes = b"") -> ConversationKeys:
    """``chain`` covers everything up to and including a reply; ``pair`` only the reply and the message
    before it, and so survives an edited or compacted history. ``setting`` comes from ``setting_of``.
    """
    owner = _encode(user)
    chain = digest(b"user", owner)
    previous, first = b"", None
    found: list[tuple[int, dict[str, str]]] = []
    before: dict[int, bytes] = {}
    unanswered: list[tuple[int, bytes]] = []
    last_index = -1
    for index, message in enumerate(messages):
        folded = b"" if message["role"] == "system" else meaning(message)
        if not folded:
            continue
        first = first or message["role"]
        asked, chain = chain, digest(b"chain", chain, folded)
        if message["role"] == "assistant":
            found.append((index, {"chain": chain.hex(), "pair": _pair(owner, previous, folded)}))
            before[index], unanswered = asked, []
        elif last_index >= 0 and last_index not in before:
            unanswered.append((last_index, asked))
        previous, last_index = folded, index
    newest = [index for index, _ in found[-_MAX_CHANGED:]]
    return ConversationKeys(
        found[::-1][:_MAX_REPLIES],
        _asked(chain, setting),
        cut=first not in (None, "user"),
        before={index: _asked(before[index], setting) for index in newest},
        unanswered=[(index, _asked(asked, setting)) for index, asked in unanswered[::-1][:_MAX_CHANGED]],
    )


def _asked(chain: bytes, setting: bytes) -> RequestKeys:
    return RequestKeys(digest(b"asked", chain, setting).hex(), digest(b"context", chain).hex())


def setting_of(messages: Sequence[Message], body: Mapping[str, Any]) -> bytes:
    """Digest of the request besides the conversation: instructions, tools and response format.

    A router, a guardrail and the agent itself get the same messages with different tasks.
    """
    said = [
        fold_instructions(text) if len(text) <= _LONG else fold_instructions.__wrapped__(text)
        for text in (message.get("content") or "" for message in messages if message["role"] == "system")
    ]
    tools = sorted(
        str(tool["function"].get("name"))
        for tool in body.get("tools") or []
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
    )
    choice = body.get("tool_choice")
    forced = None if choice in (None, "auto", "none") else choice
    return digest(_encode(to_json([said, tools, forced, body.get("response_format")])))


@lru_cache(maxsize=_KEPT)
def fold_instructions(text: str) -> str:
    """Instructions without what changes from request to request; they are resent with every request."""
    words = strip_ephemeral(text).split()
    return " ".join(filter(None, (w if w.isalpha() else _NUMBERED_WORD.sub("", w) for w in words)))


def _pair(owner: bytes, previous: bytes, reply: bytes) -> str:
    return digest(b"pair", owner, previous, reply).hex()


def shared_key(key: str) -> str:
    """The key that marks another key as belonging to turns of several sessions."""
    return digest(b"shared", bytes.fromhex(key)).hex()


def said_key(user: str, session_id: str, reply: Message) -> str | None:
    """For a reply alone, in a session that the client names: survives even a summarised history."""
    folded = meaning(reply)
    return digest(b"said", _encode(user), _encode(session_id), folded).hex() if folded else None


def call_key(user: str, reply: Message) -> str | None:
    """For a reply with tool calls under our ids, which are unique: survives any change to the history."""
    ids = [call.get("id") or "" for call in reply.get("tool_calls") or []]
    ids = [
        re.sub(r"\W|_", "", call_id) for call_id in ids or _WRITTEN_CALL.findall(reply.get("content") or "")
    ]
    ours = next((call_id for call_id in ids if _OWN_CALL.fullmatch(call_id)), None)
    return digest(b"call", _encode(user), _encode(ours)).hex() if ours else None


def is_rewritten(given: Message, reply: Message) -> bool:
    """Whether a message in a history is a client's copy of a reply: with text around it, truncated, or in
    lower case. A user's own edit does not count."""
    stated, kept = (_bare_words(message) for message in (given, reply))
    if not stated or not kept:
        return False
    if len(kept) < _SHORT:
        return stated.startswith(kept) or stated.endswith(kept)
    cut = (stated[:-_MARK] + _CUT_MARK.sub("", stated[-_MARK:])).rstrip()
    return kept in stated or (len(cut) >= _SHORT and kept.startswith(cut))


def _bare_words(message: Message) -> str:
    return " ".join(_without_thinking(strip_ephemeral(message.get("content") or "")).casefold().split())


def reply_keys(
    user: str, messages: Sequence[Message], reply: Message, setting: bytes = b""
) -> dict[str, str]:
    """The keys under which a turn with this request and reply will be found again."""
    keys = fold_conversation(user, [*messages, reply], setting)
    own = keys.replies[0][1] if keys.replies and keys.replies[0][0] == len(messages) else {}
    if own:  # for a history cut off right before this reply
        own = {**own, "alone": _pair(_encode(user), b"", meaning(reply))}
    called = call_key(user, reply)
    named = {"call": called} if called else {}
    # A reply without words changes nothing, so the whole asks for the same as the messages before it.
    return {**own, **named, **asdict(keys.before.get(len(messages), keys.asked))}


def own_words_keys(user: str, messages: Sequence[Message]) -> dict[int, str]:
    """For user messages after the last reply: index -> the key of a reply with the same text.

    Agents that talk to each other through one model appear to each other as users.
    """
    found = {}
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "assistant":
            break
        text = _SPEAKER.sub("", messages[index].get("content") or "")
        if messages[index]["role"] == "user" and len(text) >= _COMMON:
            found[index] = _pair(_encode(user), b"", meaning({"role": "assistant", "content": text}))
    return found


def opening_key(user: str, session_id: str, messages: Sequence[Message]) -> str | None:
    """For a session, from its first user message."""
    spoken = (meaning(message) for message in messages if message["role"] == "user")
    first = next((folded for folded in spoken if folded), None)
    return digest(b"opening", _encode(user), _encode(session_id), first).hex() if first else None
