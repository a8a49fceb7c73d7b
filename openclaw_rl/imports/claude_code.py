"""Claude Code's transcripts: ``~/.claude/projects/<folder>/<session>.jsonl``, a tree of messages."""

from __future__ import annotations

import re

from openclaw_rl.imports.blocks import branch, call, joined, reply, text_of, tool_result
from openclaw_rl.types import Json, Message

#: What the program adds to the user's messages, and messages that it writes in the user's name.
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_NOT_SAID = ("<command-", "<local-command-", "<bash-", "[Request interrupted", "Caveat: The messages below")


def recognises(rows: list[Json]) -> bool:
    return any("sessionId" in row and row.get("type") in ("user", "assistant") for row in rows[:200])


def read(rows: list[Json]) -> list[Json]:
    """The main conversation, without those of sub-agents."""
    linked = [row for row in rows if row.get("uuid") and not row.get("isSidechain")]
    last = max((i for i, row in enumerate(linked) if row.get("type") in ("user", "assistant")), default=-1)
    path = branch(linked[: last + 1], "uuid", "parentUuid")
    said = [message for row in path if not row.get("isMeta") for message in _messages(row)]
    return [{"messages": joined(said)}]


def _messages(row: Json) -> list[Message]:
    message = row.get("message") or {}
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    if row.get("type") == "assistant":
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        return [reply(text_of(content), [call(c.get("id"), c.get("name"), c.get("input")) for c in calls])]
    if row.get("type") != "user":
        return []
    results = [tool_result(block.get("tool_use_id"), text_of(block.get("content")))
               for block in blocks if block.get("type") == "tool_result"]  # fmt: skip
    text = _REMINDER.sub("", text_of(content)).strip()
    spoken: list[Message] = (
        [{"role": "user", "content": text}] if text and not text.startswith(_NOT_SAID) else []
    )
    return [*results, *spoken]
