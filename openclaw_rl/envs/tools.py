"""The tool-call environment's tools, and the parsing of calls.

A mistake in a call is an observation for the agent, never an error of the environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types import Json, Message, Tool

Function = Callable[..., Any]
_KINDS: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
}


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call."""

    message: Message
    name: str
    arguments: Json
    valid: bool
    """The tool exists, the arguments match its schema, and it did not raise."""


def tool(name: str, about: str, **arguments: str) -> Tool:
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": about, "parameters": parameters}


BUILT_IN: dict[str, tuple[Tool, Function]] = {
    "add": (tool("add", "Adds two numbers.", a="integer", b="integer"), lambda a, b: a + b),
    "subtract": (tool("subtract", "Takes b from a.", a="integer", b="integer"), lambda a, b: a - b),
    "multiply": (tool("multiply", "Multiplies two numbers.", a="integer", b="integer"), lambda a, b: a * b),
    "length": (tool("length", "Counts the letters of a word.", word="string"), len),
    "reverse": (tool("reverse", "Turns a word around.", word="string"), lambda word: word[::-1]),
    "upper": (tool("upper", "Puts a word into capital letters.", word="string"), lambda word: word.upper()),
}


def call(function_of: Mapping[str, tuple[Tool, Function]], given: Json) -> Called:
    """Run one call; errors are reported in the result."""
    name = str(given.get("name", ""))
    said, arguments, valid = "", {}, False
    if name not in function_of:
        said = f"error: there is no tool {name!r}; there is: {', '.join(function_of)}"
    else:
        declared, function = function_of[name]
        try:
            arguments = read_arguments(declared, given.get("arguments", "{}"))
            said, valid = _text(function(**arguments)), True
        except Exception as error:  # a custom tool may raise anything on bad arguments
            said = f"error: {error}"
    message: Message = {"role": "tool", "tool_call_id": given.get("id", ""), "name": name, "content": said}
    return Called(message, name, arguments, valid)


def read_arguments(declared: Tool, text: str) -> Json:
    """ValueError says which argument is missing or of the wrong type."""
    schema = declared["parameters"]
    known = schema.get("properties", {})
    try:
        given = json.loads(text or "{}")
    except ValueError:
        raise ValueError(f"the arguments of {declared['name']} are not JSON") from None
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of {declared['name']} must be an object")
    for name in schema.get("required", []):
        if name not in given:
            raise ValueError(f"{declared['name']} needs {name!r}")
    for name, value in given.items():
        kind = known.get(name, {}).get("type")
        if name not in known and not schema.get("additionalProperties"):
            raise ValueError(f"{declared['name']} has no argument {name!r}")
        if kind in _KINDS and (not isinstance(value, _KINDS[kind]) or (kind != "boolean" and value is True)):
            raise ValueError(f"{name!r} of {declared['name']} must be of type {kind}")
        if (allowed := known.get(name, {}).get("enum")) and value not in allowed:
            raise ValueError(f"{name!r} of {declared['name']} must be one of {', '.join(map(str, allowed))}")
    return given


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
