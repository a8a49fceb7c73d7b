"""OpenAI's function calling before tools: ``functions``, ``function_call`` and the matching messages."""

from __future__ import annotations

from typing import Any

from openclaw_rl.types import Json


def is_legacy(body: Json) -> bool:
    messages = body.get("messages") or []
    return bool(body.get("functions")) or any(message.get("function_call") for message in messages)


def modern(body: Json) -> Json:
    """The request with tools instead of functions; a message's call and its result get the same id."""
    rest = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    tools = [{"type": "function", "function": function} for function in body.get("functions") or []]
    choice = _choice(body.get("function_call"))
    messages = [_message(message, index) for index, message in enumerate(body["messages"])]
    return {
        **rest,
        **({"tools": tools} if tools else {}),
        **({"tool_choice": choice} if choice and tools else {}),
        "messages": messages,
    }


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _message(message: Json, index: int) -> Json:
    if message.get("role") == "function":
        return {**message, "role": "tool", "tool_call_id": f"function_{index - 1}"}
    called = message.get("function_call")
    if not called:
        return message
    rest = {name: value for name, value in message.items() if name != "function_call"}
    call = {"id": f"function_{index}", "type": "function", "function": called}
    return {**rest, "tool_calls": [call]}


def reworded(wire: Json) -> Json:
    """A reply or chunk with its first tool call as ``function_call``; the old format has only one."""
    if not wire.get("tool_calls"):
        return wire
    rest = {name: value for name, value in wire.items() if name != "tool_calls"}
    return {**rest, "function_call": wire["tool_calls"][0]["function"]}
