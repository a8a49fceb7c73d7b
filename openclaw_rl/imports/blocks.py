"""What the formats have in common: text blocks, tool calls, and histories that are trees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from openclaw_rl.types import Json, Message

_TEXT = ("text", "input_text", "output_text")


def text_of(content: Any) -> str:
    """The text of a message: a string, or the text blocks of a list."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") in _TEXT]
    return "\n".join(text for text in texts if isinstance(text, str))


def call(call_id: Any, name: Any, arguments: Any) -> Json:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": str(call_id), "type": "function", "function": {"name": str(name), "arguments": said}}


def tool_result(call_id: Any, content: str) -> Message:
    return {"role": "tool", "tool_call_id": str(call_id), "content": content}


def reply(text: str, calls: Iterable[Json] = ()) -> Message:
    calls = list(calls)
    message: Message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": calls} if calls else message


def joined(messages: Iterable[Message]) -> list[Message]:
    """Merge consecutive assistant messages, which are parts of one reply."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is not None and last["role"] == message["role"] == "assistant":
            text = "\n".join(part for part in (last["content"], message["content"]) if part)
            found[-1] = reply(text, [*last.get("tool_calls", ()), *message.get("tool_calls", ())])
        else:
            found.append(message)
    return found


def branch(rows: list[Json], key: str, parent: str) -> list[Json]:
    """The path from the first row to the last, in a history with edited or retried messages."""
    by_key = {row[key]: row for row in rows if row.get(key)}
    row, path, seen = rows[-1] if rows else None, list[Json](), set[str]()
    while row is not None and row.get(key) not in seen:
        seen.add(row[key])
        path.append(row)
        row = by_key.get(row.get(parent))
    return path[::-1]
