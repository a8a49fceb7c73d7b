"""What a conversation *means*, independent of how a client re-sends it.

Clients rewrite ids, re-serialise tool arguments, strip thinking, prefix timestamps and inject
context that is gone in the next request. Keys computed here ignore all of that, so the same
conversation gives the same keys every time it comes back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openclaw_rl.capture.content import digest, to_json
from openclaw_rl.types import Message

#: What OpenClaw, Claude Code, Codex and graphs put into a user's message beside their words; the last is
#: OpenClaw's whole message when nothing of a reply could be shown, and is gone from later histories.
_EPHEMERAL = re.compile(
    r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    r"|<(?P<tag>(?:system-)?reminder|environment_context)>.*?</(?P=tag)>"
    r"|\A(?:\[[^\]\n]*\] )?The previous (?:attempt|assistant turn)\b[^.]{0,80}"
    r"\bdid not produce a user-visible answer\. Continue .*\Z",
    re.DOTALL,
)
#: OpenClaw says a message once more around these when nobody answered; later histories hold it as it was.
_REPEATED = re.compile(
    r"\[Queued user message from a previous active turn;[^\]\n]*\]\n"
    r"|\n+Continue the current task from the existing transcript, preserving completed work\..*\Z",
    re.DOTALL,
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
#: "[Mon 2026-09-07 10:11 UTC] " and its relatives, at the start of a user message.
_TIMESTAMP = re.compile(r"^\s*\[[^\]\n]*\d{1,2}:\d{2}[^\]\n]*\]\s*")
#: As the server makes them, without the underscores that some clients take out.
_OWN_CALL = re.compile(r"call[0-9a-z]{16,}t\d+")
#: The same where some client wrote a call down as text.
_WRITTEN_CALL = re.compile(r"\bcall_?[0-9a-z]{16,}t\d+\b")
_RUNTIME = re.compile(r"^Runtime: agent=.*$", re.MULTILINE)
#: Times, counters and ids, which differ in every request of one agent.
_NUMBERED_WORD = re.compile(r"(?<!\w)[^\W\d]*\d\w*")
#: Requests rarely drop more than this many replies from the end of their history.
_MAX_REPLIES = 8
#: How clients mark what they cut off, and below how many characters a text is no evidence by itself.
_CUT_MARK = re.compile(r"(?:\.{3,}|…|[\[(<][^\])>]{0,40}(?:truncat|omitt|cut)[^\])>]{0,40}[\])>])\s*\Z")
_SHORT = 16
#: How AutoGen says in the text whose words they are, and below how many characters people say the same.
_SPEAKER = re.compile(r"\A[\w .-]{1,60} said:\n")
_COMMON = 32
#: Replies that a client rewrote or left out are looked for among this many of the newest.
_MAX_CHANGED = 3


def strip_ephemeral(text: str) -> str:
    """The text without context that the client injected for one request only."""
    return _REPEATED.sub("", _EPHEMERAL.sub("", text)).strip()


def is_ephemeral(message: Message) -> bool:
    """A message that holds nothing but injected context."""
    text = message.get("content") or ""
    return message["role"] == "user" and bool(_EPHEMERAL.search(text)) and not strip_ephemeral(text)


def meaning(message: Message) -> bytes:
    """One message folded to role, text and tool calls; empty when nothing is left of it."""
    text = _THINKING.sub("", strip_ephemeral(message.get("content") or ""))
    if message["role"] == "user":
        text = _RUNTIME.sub("", _TIMESTAMP.sub("", text))
    calls = [(call["name"], _fold_arguments(call["arguments"])) for call in message.get("tool_calls") or []]
    folded = " ".join(text.split())
    if not folded and not calls:
        return b""
    return _encode(to_json([message["role"], folded, calls]))


def _fold_arguments(arguments: str) -> str:
    """Numbers as JavaScript sees them, for a client that parses and writes them again."""
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
    """With what is asked of the model besides."""
    context: str
    """Whatever is asked of it."""


@dataclass(frozen=True, slots=True)
class ConversationKeys:
    """Under which keys a conversation's replies, and the conversation as it stands, are found."""

    replies: list[tuple[int, dict[str, str]]]
    """Newest first: the index of an assistant message and the keys a turn would have there."""
    asked: RequestKeys
    cut: bool
    """It does not begin with a user's words, so something before it was left out."""
    before: dict[int, RequestKeys]
    """What the newest replies answered, by where they stand: a client may have rewritten them."""
    unanswered: list[tuple[int, RequestKeys]]
    """Newest first: what a reply would have answered that was left out after the message at an index."""


def conversation_keys(user: str, messages: Sequence[Message]) -> list[tuple[int, dict[str, str]]]:
    """The keys of a conversation's replies, newest first."""
    return fold_conversation(user, messages).replies


def fold_conversation(user: str, messages: Sequence[Message], setting: bytes = b"") -> ConversationKeys:
    """``chain`` covers everything up to and including a reply; ``pair`` only what directly preceded
    it and the reply, and so survives an edited or compacted past. ``setting`` as of ``setting_of``.
    """
    owner = _encode(user)
    chain = digest(b"user", owner)
    previous, first = b"", None
    found: list[tuple[int, dict[str, str]]] = []
    before: dict[int, RequestKeys] = {}
    unanswered: list[tuple[int, RequestKeys]] = []
    last_index = -1
    for index, message in enumerate(messages):
        folded = b"" if message["role"] == "system" else meaning(message)
        if not folded:
            continue
        first = first or message["role"]
        asked = _asked(chain, setting)
        chain = digest(b"chain", chain, folded)
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
        before={index: before[index] for index in newest},
        unanswered=unanswered[::-1][:_MAX_CHANGED],
    )


def _asked(chain: bytes, setting: bytes) -> RequestKeys:
    return RequestKeys(digest(b"asked", chain, setting).hex(), digest(b"context", chain).hex())


def setting_of(messages: Sequence[Message], body: Mapping[str, Any]) -> bytes:
    """What is asked of the model besides the conversation: instructions, tools and the shape of the reply.

    A router, a guardrail and the agent itself read the same messages and are asked for different things.
    """
    said = [
        " ".join(_NUMBERED_WORD.sub("", strip_ephemeral(message.get("content") or "")).split())
        for message in messages
        if message["role"] == "system"
    ]
    tools = sorted(
        str(tool["function"].get("name"))
        for tool in body.get("tools") or []
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
    )
    choice = body.get("tool_choice")
    forced = None if choice in (None, "auto", "none") else choice
    return digest(_encode(to_json([said, tools, forced, body.get("response_format")])))


def _pair(owner: bytes, previous: bytes, reply: bytes) -> str:
    return digest(b"pair", owner, previous, reply).hex()


def shared_key(key: str) -> str:
    """Under which it is noted that a key belongs to turns of several sessions."""
    return digest(b"shared", bytes.fromhex(key)).hex()


def said_key(user: str, session_id: str, reply: Message) -> str | None:
    """For a reply by itself, in a session that the client names: it survives even a summarised past."""
    folded = meaning(reply)
    return digest(b"said", _encode(user), _encode(session_id), folded).hex() if folded else None


def call_key(user: str, reply: Message) -> str | None:
    """For a reply that called tools under ids of ours, which nobody else can have: it survives any past."""
    ids = [call.get("id") or "" for call in reply.get("tool_calls") or []]
    ids = [
        re.sub(r"\W|_", "", call_id) for call_id in ids or _WRITTEN_CALL.findall(reply.get("content") or "")
    ]
    ours = next((call_id for call_id in ids if _OWN_CALL.fullmatch(call_id)), None)
    return digest(b"call", _encode(user), _encode(ours)).hex() if ours else None


def is_rewritten(given: Message, reply: Message) -> bool:
    """Whether a message of a history is a reply as some client keeps it: with text around it, cut, or in
    lower case. A person's own edit is neither."""
    stated, kept = (_bare_words(message) for message in (given, reply))
    if not stated or not kept:
        return False
    if len(kept) < _SHORT:
        return stated.startswith(kept) or stated.endswith(kept)
    cut = _CUT_MARK.sub("", stated).rstrip()
    return kept in stated or (len(cut) >= _SHORT and kept.startswith(cut))


def _bare_words(message: Message) -> str:
    return " ".join(_THINKING.sub("", strip_ephemeral(message.get("content") or "")).casefold().split())


def reply_keys(
    user: str, messages: Sequence[Message], reply: Message, setting: bytes = b""
) -> dict[str, str]:
    """The keys under which a turn with this request and reply will be found again."""
    found = conversation_keys(user, [*messages, reply])
    own = found[0][1] if found and found[0][0] == len(messages) else {}
    if own:  # of a history that begins with this reply, that is all there is
        own = {**own, "alone": _pair(_encode(user), b"", meaning(reply))}
    called = call_key(user, reply)
    named = {"call": called} if called else {}
    return {**own, **named, **asdict(fold_conversation(user, messages, setting).asked)}


def own_words_keys(user: str, messages: Sequence[Message]) -> dict[int, str]:
    """For users' messages after the last reply: where each stands, the key of a reply that says the same.

    Agents that talk to each other through one model are users to each other.
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
    """For a session by the words it began with."""
    spoken = (meaning(message) for message in messages if message["role"] == "user")
    first = next((folded for folded in spoken if folded), None)
    return digest(b"opening", _encode(user), _encode(session_id), first).hex() if first else None
