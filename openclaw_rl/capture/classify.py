"""What kind of request this is: part of the conversation, or something on its side.

Agents send heartbeats, memory flushes, summaries and titles through the same API, often with the
whole conversation as history. Such a request says nothing about the last reply, so it must never
become that reply's next state. Anything not recognised is unknown until somebody continues it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from openclaw_rl.capture.normalise import is_ephemeral, strip_ephemeral
from openclaw_rl.types import Message, TurnKind

HEADER = "x-turn-type"
_SIDE_HEADER_VALUES = ("side", "heartbeat", "title", "summary", "memory", "system")

#: OpenClaw's own words, wherever they stand in the last message.
_SIDE_MARKS = (
    "[OpenClaw heartbeat poll]",
    "Pre-compaction memory flush",
    "A background task completed",
)
#: How agents and chat windows ask for a title, a summary or suggestions about a conversation.
_ABOUT = r"(?:chat|conversation|dialog(?:ue)?|session|thread|transcript)\b"
_SIDE_TASKS = re.compile(
    r"^(?:#+\s*Task:?\s*)?(?:please\s+)?(?:generate|create|write|suggest|provide|give)\b.{0,60}\b"
    r"(?:title|tags?|emoji|follow-?up questions?)\b.{0,80}\b"
    + _ABOUT
    + r"|^(?:#+\s*Task:?\s*)?(?:please\s+)?(?:summari[sz]e|compact|condense)\b.{0,40}\b"
    r"(?:this|the|our|above|following|preceding)\b.{0,30}\b" + _ABOUT,
    re.IGNORECASE | re.DOTALL,
)


def classify(
    messages: Sequence[Message],
    headers: Mapping[str, str],
    *,
    has_tools: bool,
    continued_had_tools: bool | None = None,
) -> TurnKind:
    """``continued_had_tools``: whether the turn this request continues was offered tools."""
    stated = headers.get(HEADER, "").strip().lower()
    if stated:
        return "side" if stated in _SIDE_HEADER_VALUES else "main"
    last = last_real_message(messages)
    if last is not None and last["role"] == "user" and _is_side_task(strip_ephemeral(last["content"] or "")):
        return "side"
    # The same agent suddenly without its tools, asking about its own history: a summary or title.
    if continued_had_tools and not has_tools and last is not None and last["role"] in ("user", "system"):
        return "side"
    return "unknown"


def last_real_message(messages: Sequence[Message]) -> Message | None:
    """The last message that is not injected context."""
    return next((message for message in reversed(messages) if not is_ephemeral(message)), None)


def _is_side_task(text: str) -> bool:
    return any(mark in text for mark in _SIDE_MARKS) or bool(_SIDE_TASKS.match(text))


def next_state_after(messages: Sequence[Message], index: int) -> list[Message]:
    """What followed the reply at ``index``, up to the next reply, without injected context."""
    following: list[Message] = []
    for message in messages[index + 1 :]:
        if message["role"] == "assistant":
            break
        if message["role"] == "system" or is_ephemeral(message):
            continue
        following.append({**message, "content": strip_ephemeral(message.get("content") or "")})
    return following
