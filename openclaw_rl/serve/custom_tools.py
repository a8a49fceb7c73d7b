"""Custom tools, which are called with free text instead of JSON.

The model sees them as functions with one string argument; turns are stored in this form, too. A regular
expression becomes the argument's pattern, which forced calls follow; other grammars only go into the
description.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from openclaw_rl.types import Json

#: Marks these functions, so that they can be told from the client's own, also in the ledger.
_MARK = "a custom tool"
_ONLY = "input"


def as_function(tool: Json) -> Json:
    """A tool's name, description and format as a function."""
    form = tool.get("format") or {}
    # Chat completions put the grammar into an object of its own.
    grammar: Json = form.get("grammar") or form if form.get("type") == "grammar" else {}
    text: Json = {"type": "string"}
    said = [tool.get("description") or ""]
    if grammar.get("syntax") == "regex":
        text["pattern"] = grammar.get("definition") or ""
    elif grammar:
        said.append(f"The {_ONLY} follows this grammar:\n{grammar.get('definition')}")
    parameters = {"type": "object", "properties": {_ONLY: text}, "required": [_ONLY]}
    return {
        "name": tool.get("name") or "",
        "description": "\n\n".join(filter(None, said)),
        "parameters": {**parameters, "additionalProperties": False, "$comment": _MARK},
    }


def custom_names(tools: Collection[Json] | None) -> frozenset[str]:
    """The names of custom tools among stored tools."""
    functions = [tool.get("function") or {} for tool in tools or []]
    return frozenset(f["name"] for f in functions if (f.get("parameters") or {}).get("$comment") == _MARK)


def arguments_of(text: str) -> str:
    return json.dumps({_ONLY: text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """The free text of a call; incomplete arguments are returned unchanged."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(_ONLY) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


# --- in chat completions ---------------------------------------------------------------------


def has_custom(body: Json) -> bool:
    calls = (call for message in body.get("messages") or [] for call in message.get("tool_calls") or [])
    choice = body.get("tool_choice")
    chosen = [choice] if isinstance(choice, dict) else []
    return any(one.get("type") == "custom" for one in (*(body.get("tools") or []), *calls, *chosen))


def with_functions(body: Json) -> Json:
    """The request with custom tools replaced by functions."""
    changed: Json = {"messages": [_message(message) for message in body["messages"]]}
    if body.get("tools"):
        changed["tools"] = [_tool(tool) for tool in body["tools"]]
    if isinstance(choice := body.get("tool_choice"), dict):
        changed["tool_choice"] = _choice(choice)
    return {**body, **changed}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "custom":
        return tool
    return {"type": "function", "function": as_function(tool.get("custom") or {})}


def _choice(choice: Json) -> Any:
    if choice.get("type") == "custom":
        return {"type": "function", "function": choice.get("custom")}
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        return {
            **choice,
            "allowed_tools": {**allowed, "tools": [_choice(t) for t in allowed.get("tools") or []]},
        }
    return choice


def _message(message: Json) -> Json:
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_called(call) for call in message["tool_calls"]]}


def _called(call: Json) -> Json:
    if call.get("type") != "custom":
        return call
    custom = call.get("custom") or {}
    function = {"name": custom.get("name"), "arguments": arguments_of(custom.get("input") or "")}
    return {"id": call.get("id") or "", "type": "function", "function": function}


def reworded(call: Json, names: Collection[str]) -> Json:
    """A finished call, with calls of custom tools in the client's format."""
    function = call["function"]
    if function["name"] not in names:
        return call
    custom = {"name": function["name"], "input": text_of(function["arguments"])}
    rest = {name: value for name, value in call.items() if name != "function"}
    return {**rest, "type": "custom", "custom": custom}
