"""Converts messages and tools of a chat-completions request to the internal format.

Turns are stored as such requests, so the gateway (for client requests) and learning (for the ledger) use the
same functions. They take JSON that was validated on arrival and raise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import Json, Message, Tool

#: The key in a turn's parameters for the note that was in its prompt.
NOTE = "hint_memory"
_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def internal_message(message: Json) -> Message:
    content = message.get("content")
    internal: Message = {"role": _ROLES.get(message["role"], message["role"]), "content": _text(content)}
    if isinstance(content, list) and (other := [part["type"] for part in content if not _is_text(part)]):
        internal["attachments"] = other
    if reasoning := message.get("reasoning_content"):
        internal["reasoning"] = reasoning
    if calls := message.get("tool_calls"):
        internal["tool_calls"] = [_call(call) for call in calls]
    for name in ("tool_call_id", "name"):
        if message.get(name):
            internal[name] = message[name]
    return internal


def _call(call: Json) -> Json:
    function = call["function"]
    return {
        "id": call.get("id", ""),
        "name": function["name"],
        "arguments": function.get("arguments", "{}"),
    }


def _text(content: str | list[Json] | None) -> str:
    """The text; other parts appear as their type, so that a reader knows they were there."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(
        (part.get("text") or part.get("refusal") or "") if _is_text(part) else f"[{part['type']}]"
        for part in content
    )


def _is_text(part: Json) -> bool:
    return part["type"] in _TEXT_PARTS


def internal_tools(body: Json) -> list[Tool]:
    """The tools in the prompt; none if the request forbids tool calls."""
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    tools = [_tool(tool["function"]) for tool in body.get("tools") or []]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = {tool["function"]["name"] for tool in choice["allowed_tools"]["tools"]}
        return [tool for tool in tools if tool["name"] in allowed]
    return tools


def _tool(function: Json) -> Tool:
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }


def thinking(body: Json) -> bool | None:
    """Whether the model is told to think first; None leaves it to the model's template."""
    shape = body.get("response_format") or {}
    is_json = shape.get("type") == "json_object"
    if is_json or (shape.get("type") == "json_schema" and shape["json_schema"]["schema"]):
        return False  # a reply with a required schema has no room for it
    stated: bool | None = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    return stated


def with_note(messages: Sequence[Json], note: str) -> list[Json]:
    """Append the note to the first system message, or add one."""
    for index, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            content = message.get("content") or ""
            if isinstance(content, str):
                content = f"{content.rstrip()}\n\n{note}".lstrip()
            else:
                content = [*content, {"type": "text", "text": f"\n\n{note}"}]
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    return [{"role": "system", "content": note}, *messages]
