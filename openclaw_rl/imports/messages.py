"""OpenAI's fine-tuning lines and hand-written conversations: ``{"messages": […], "score"?, "user"?}``."""

from __future__ import annotations

from openclaw_rl.imports.blocks import text_of
from openclaw_rl.types import Json

_ROLES = ("system", "developer", "user", "assistant", "tool")


def recognises(rows: list[Json]) -> bool:
    return any("messages" in row for row in rows)


def read(rows: list[Json]) -> list[Json]:
    """ValueError names the invalid conversation, since these files are written by hand."""
    return [_read(row, number) for number, row in enumerate(rows, 1)]


def _read(row: Json, number: int) -> Json:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"conversation {number} has no 'messages', a list as in chat completions")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"conversation {number}: a message's role is one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise ValueError(f"conversation {number}: a message's content is a text")
    said = [{**message, "content": text_of(message.get("content"))} for message in messages]
    if not any(message["role"] == "assistant" and message["content"] for message in said):
        raise ValueError(f"conversation {number} holds no reply of an assistant")
    for message in said:
        message.pop("weight", None)
    score = row.get("score", 0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
        raise ValueError(f"conversation {number}: score is {score!r}; it lies between -1 and 1")
    found: Json = {"messages": said}
    if "score" in row:
        last = max(i for i, m in enumerate(said) if m["role"] == "assistant" and m["content"])
        found["scores"] = {last: score}
    return {**found, "user": row["user"]} if row.get("user") else found
