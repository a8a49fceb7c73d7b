"""OpenClaw's transcripts: ``~/.openclaw/agents/<agent>/sessions/<session>.jsonl``, a tree of entries."""

from __future__ import annotations

from openclaw_rl.imports.blocks import branch, call, joined, reply, text_of, tool_result
from openclaw_rl.types import Json, Message


def recognises(rows: list[Json]) -> bool:
    return rows[0].get("type") == "session" and any(row.get("type") == "message" for row in rows)


def read(rows: list[Json]) -> list[Json]:
    entries = [row for row in rows if row.get("type") != "session"]
    path = branch(entries, "id", "parentId") if all("id" in row for row in entries) else entries
    said = [_message(row["message"]) for row in path if row.get("type") == "message"]
    return [{"messages": joined(message for message in said if message is not None)}]


def _message(message: Json) -> Message | None:
    role, content = message.get("role"), message.get("content")
    if role == "toolResult":
        return tool_result(message.get("toolCallId"), text_of(content))
    if role == "assistant":
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        calls = [block for block in blocks if block.get("type") == "toolCall"]
        return reply(text_of(content), [call(c.get("id"), c.get("name"), c.get("arguments")) for c in calls])
    return {"role": "user", "content": text_of(content)} if role == "user" else None
