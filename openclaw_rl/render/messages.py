"""Converts internal messages to the form that chat templates expect.

Nothing here looks at tokens. ``as_template`` keeps tool calls as structure, for templates that
support tools; ``as_text`` writes them into the content, for templates that do not. ``repairs``
yields looser and looser versions of a conversation, for templates that reject the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from openclaw_rl.types import Json, Message, Tool, ToolCall

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def normalise(messages: Sequence[Message], *, parse_arguments: bool) -> list[Json]:
    """Checked copies: known role, content a string, tool results named after their call.

    ``parse_arguments`` turns arguments into objects where they are JSON objects; others stay
    strings.
    """
    names: dict[str, str] = {}
    out = []
    for message in messages:
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            raise ValueError(f"unknown message role {message.get('role')!r}; use one of {', '.join(_ROLES)}")
        item: Json = {"role": role, "content": _content(message)}
        if role == "assistant":
            _add_assistant(item, message, parse_arguments)
            names |= {call["id"]: call["name"] for call in item.get("tool_calls", ()) if call["id"]}
        if role == "tool":
            item["tool_call_id"] = message.get("tool_call_id") or ""
            item["name"] = message.get("name") or names.get(item["tool_call_id"], "")
        out.append(item)
    return out


def _content(message: Message) -> str:
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise ValueError(f"message content is a {type(content).__name__}, not a string; join its parts first")
    return content or ""


def _add_assistant(item: Json, message: Message, parse_arguments: bool) -> None:
    if message.get("reasoning"):
        item["reasoning_content"] = message["reasoning"]
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call.get("arguments") or "{}"
        arguments = _parsed(arguments) if parse_arguments else arguments
        calls.append({"id": call.get("id") or "", "name": call["name"], "arguments": arguments})
    if calls:
        item["tool_calls"] = calls


def _parsed(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def tool_specs(tools: Sequence[Tool]) -> list[Json]:
    empty = {"type": "object", "properties": {}}
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("parameters") or empty,
            },
        }
        for tool in tools
    ]


def as_template(messages: Sequence[Json]) -> list[Json]:
    return [_with_nested_calls(item) if "tool_calls" in item else item for item in messages]


def _with_nested_calls(item: Json) -> Json:
    return {**item, "tool_calls": [_nested(call) for call in item["tool_calls"]]}


def _nested(call: Json) -> Json:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"type": "function", "id": call["id"], "function": function}


def as_text(messages: Sequence[Json], write_calls: Callable[[Sequence[ToolCall]], str]) -> list[Json]:
    """Calls become content; results become a user turn, which adjacent results share."""
    out: list[Json] = []
    after_result = False
    for item in messages:
        role, content = item["role"], item["content"]
        if role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if after_result:
                out[-1]["content"] += "\n" + content
                continue
        elif "tool_calls" in item:
            calls = write_calls([ToolCall(call["name"], call["arguments"]) for call in item["tool_calls"]])
            content = f"{content}\n{calls}" if content else calls
        after_result = role == "tool"
        out.append({"role": "user" if after_result else role, "content": content})
    return out


def with_tool_prompt(messages: Sequence[Json], prompt: str) -> list[Json]:
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{prompt}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def repairs(messages: list[Json]) -> Iterator[list[Json]]:
    """The same conversation, first as it is, then adapted to stricter and stricter templates."""
    yield messages
    first = _system_first(messages)
    yield first
    yield _one_call_each(first)
    yield _merge_neighbours(_system_in_user(first))
    yield _merge_neighbours(_system_in_user(_one_call_each(first)))


def _system_first(messages: Sequence[Json]) -> list[Json]:
    texts = [item["content"] for item in messages if item["role"] == "system"]
    rest = [item for item in messages if item["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _system_in_user(messages: Sequence[Json]) -> list[Json]:
    return [{**item, "role": "user"} if item["role"] == "system" else item for item in messages]


def _merge_neighbours(messages: Sequence[Json]) -> list[Json]:
    out: list[Json] = []
    for item in messages:
        mergeable = out and item["role"] == out[-1]["role"] != "tool"
        if mergeable and "tool_calls" not in item and "tool_calls" not in out[-1]:
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{item['content']}"}
        else:
            out.append(item)
    return out


def _one_call_each(messages: Sequence[Json]) -> list[Json]:
    """Parallel calls become sequential, each followed by its own result."""
    queue, out = list(messages), []
    while queue:
        item = queue.pop(0)
        calls = item.get("tool_calls", [])
        if len(calls) < 2:
            out.append(item)
            continue
        for index, call in enumerate(calls):
            base = item if index == 0 else {"role": "assistant", "content": ""}
            out.append({**base, "tool_calls": [call]})
            result = next((m for m in queue if call["id"] and m.get("tool_call_id") == call["id"]), None)
            if result is not None:
                queue.remove(result)
                out.append(result)
    return out
