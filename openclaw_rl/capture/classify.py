"""Classifies a request: part of the conversation, or a side request.

Agents send heartbeats, memory flushes, summaries and titles through the same API, often with the
whole conversation as history. Such a request says nothing about the last reply, so it must never
become that reply's next state. Anything not recognised is unknown until a later request continues it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from openclaw_rl.capture.normalise import is_ephemeral, strip_ephemeral
from openclaw_rl.types import Message, TurnKind

HEADER = "x-turn-type"
_SIDE_HEADER_VALUES = ("side", "heartbeat", "title", "summary", "memory", "system")

#: OpenClaw's own texts, anywhere in a message. A heartbeat has one wording when it is sent and another in
#: later histories; other events that wake an agent are reported in the same style.
_SIDE_MARKS = (
    "[OpenClaw heartbeat poll]",
    "[OpenClaw exec completion]",
    "[OpenClaw cron wake]",
    "[OpenClaw session event]",
    "[[OPENCLAW_INTERNAL_CONTEXT_BEGIN]]",
    "Follow the heartbeat monitor scratch context",
    "Read HEARTBEAT.md if it exists",
    "Pre-compaction memory flush",
    "A background task completed",
)
#: Delimiters of a transcript inside a message that asks for its summary.
_TRANSCRIPT = ("<conversation>", "</conversation>")
#: How agents and chat clients ask for a title, a summary or suggestions about a conversation, and how graph
#: nodes ask for a verdict on it or for the next speaker. A user would say "your answer" instead.
_NAMES = r"chat|conversation|dialog(?:ue)?|session|thread|transcript"
_ABOUT = rf"(?:{_NAMES})\b"
_TASK = r"^(?:#+\s*Task:?\s*)?(?:please\s+)?"
_MODEL, _REPLY = "(?:assistant|ai|agent|model)", "(?:answer|response|reply|output)"
_ABOVE = rf"(?:above (?:{_NAMES}|messages)|(?:{_NAMES}|messages) (?:above|so far|to date))\b"
_SIDE_TASKS = re.compile(
    "|".join((
        _TASK + r"(?:generate|create|write|suggest|provide|give)\b.{0,60}\b"
        r"(?:title|tags?|emoji|follow-?up questions?)\b.{0,80}\b" + _ABOUT,
        r"^generate\b.{0,40}\b(?:chat|conversation|session|thread) title\b",
        _TASK + r"(?:summari[sz]e|compact|condense)\b.{0,40}\b"
        r"(?:this|the|our|above|following|preceding)\b.{0,30}\b" + _ABOUT,
        _TASK + r"(?:generate|create|write|provide)\b.{0,30}\bsummary of (?:the|this|our) .{0,20}\b" + _ABOUT,
        rf"^this is (?:a |the )?summary of the {_ABOVE}",
        _TASK + rf"(?:read|given|based on|considering) the {_ABOVE}.{{0,80}}\b(?:select (?:the next|one of)"
        r"|(?:who|which)\b.{0,40}\b(?:next|handle|act|respond)|classify|route|extract)\b",
        _TASK + rf"extract\b.{{0,60}}\b(?:from|in) the {_ABOVE}",
        _TASK + r"(?:critique|review|evaluate|grade|score|assess|rate|judge|verify|check|reflect on)"
        rf"\b.{{0,40}}\b(?:(?:the|this) {_MODEL}['’]s\b.{{0,20}}\b{_REPLY}"
        rf"|{_REPLY}\b.{{0,20}}\b(?:of|by|from) the {_MODEL})\b",
        r"^recall we are working on the following request\b",
        r"^we are working on the following task\b.*\bthe above messages contain\b",
        r"^all (?:the )?above messages are\b",
    )),
    re.IGNORECASE | re.DOTALL,
)  # fmt: skip

#: What a side request makes from a history, and words for the history: looser patterns than above, for
#: requests whose tools are gone.
_PRODUCT = re.compile(
    r"\b(?:summar(?:y|ies|i[sz]e)|title|recap|compact(?:ion)?|condense|hand-?off|checkpoint|memor(?:y|ies)"
    r"|follow-?up questions?|key (?:facts|points|insights))\b",
    re.IGNORECASE,
)
_HISTORY = re.compile(rf"\b(?:so far|above|history|messages|{_NAMES})\b", re.IGNORECASE)


def classify(
    messages: Sequence[Message],
    headers: Mapping[str, str],
    *,
    has_tools: bool,
    continued_had_tools: bool | None = None,
) -> TurnKind:
    """``continued_had_tools``: whether the turn this request continues was offered tools."""
    stated = headers.get(HEADER, "").strip().lower()
    if stated in _SIDE_HEADER_VALUES:
        return "side"
    last = last_real_message(messages)
    # An event may arrive within a run that a user started, so this overrides a stated "main".
    if last is not None and is_aside(last):
        return "side"
    if stated:
        return "main"
    if last is not None and last["role"] == "user" and _is_side_task(strip_ephemeral(last["content"] or "")):
        return "side"
    # The task may be in the system prompt, with the conversation's text as its input.
    if (
        not has_tools
        and len(messages) == 2
        and messages[0]["role"] == "system"
        and _is_side_task(messages[0]["content"] or "")
    ):
        return "side"
    # The same agent suddenly without its tools: a side request if it asks about its own history.
    # Graph frameworks also send the user's next message without tools.
    if continued_had_tools and not has_tools and last is not None and last["role"] in ("user", "system"):
        return "side" if _is_about_history(strip_ephemeral(last["content"] or "")) else "unknown"
    return "unknown"


def last_real_message(messages: Sequence[Message]) -> Message | None:
    """The last message that is not injected context."""
    return next((message for message in reversed(messages) if not is_ephemeral(message)), None)


def is_aside(message: Message) -> bool:
    """Whether the agent's own machinery wrote the message; it then says nothing about the reply before it."""
    text = message.get("content") or ""
    return message["role"] == "user" and any(mark in text for mark in _SIDE_MARKS)


def _is_side_task(text: str) -> bool:
    opening, closing = _TRANSCRIPT
    if text.startswith(opening) and "summar" in text.rpartition(closing)[2].lower():
        return True
    return bool(_SIDE_TASKS.match(text))


def _is_about_history(text: str) -> bool:
    return bool(_PRODUCT.search(text) and _HISTORY.search(text))


def next_state_after(
    messages: Sequence[Message],
    index: int,
    side_replies: Container[int] = (),
    own_words: Container[int] = (),
) -> list[Message]:
    """What followed the reply at ``index``, up to the next reply, without injected context.

    Some agents keep side requests in the history: these and the replies to them (recognised, or known to be
    at ``side_replies``) are skipped, and so are messages that the model itself wrote as another agent
    (at ``own_words``).
    """
    following: list[Message] = []
    aside = False
    for position, message in enumerate(messages[index + 1 :], index + 1):
        if message["role"] == "assistant":
            if not aside and position not in side_replies:
                break
            following, aside = [], True
        elif is_aside(message):  # before is_ephemeral: some reports consist of injected context only
            aside = aside or not following
        elif message["role"] == "system" or position in own_words or is_ephemeral(message):
            continue
        elif message["role"] == "user" or not aside:
            following.append({**message, "content": strip_ephemeral(message.get("content") or "")})
            aside = False
    return following
