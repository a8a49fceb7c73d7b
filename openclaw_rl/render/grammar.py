"""Grammars for structured replies, in llguidance's dialect of Lark.

JSON has fixed separators: a small model that may choose white space can spend its whole reply on
it. The engine interprets schemas and decides whether they are valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.schemas import NAMED_PARTS, PARTS, moved, refers
from openclaw_rl.types import Json, Tool

#: Most characters of a string whose schema states no length.
MAX_CHARS = 512
_LARGE, _MANY = 10**15, 64
#: With one of these, a string or a number is already limited, or must not be limited further.
_CLOSED = {"enum", "const", "pattern"}
#: Most characters that strings of a format need.
_FORMATTED = {"date-time": 32, "time": 24, "duration": 24, "email": 48, "hostname": 48}
#: oneOf is treated as anyOf: a grammar cannot check that only one of the schemas matches.
_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def json_rule(schema: Json, max_chars: int = MAX_CHARS) -> str:
    """An expression that matches one JSON value of the schema."""
    limited = {**limit(schema, max_chars), "x-guidance": _OPTIONS}
    return f"%json {json.dumps(limited, ensure_ascii=False)}"


def json_grammar(schema: Json, max_chars: int = MAX_CHARS) -> str:
    return f"start: value\nvalue: {json_rule(schema, max_chars)}\n"


def limit(schema: Any, max_chars: int) -> Any:
    """The schema with a limit on every string, integer and list that it leaves unbounded.

    A small model can go on with a string or a number until its tokens run out, and a truncated
    reply is not valid JSON. Limits that the schema states itself are kept.
    """
    if isinstance(schema, list):
        return [limit(part, max_chars) for part in schema]
    if not isinstance(schema, dict):
        return schema
    limited = {
        name: {key: limit(part, max_chars) for key, part in value.items()}
        if name in NAMED_PARTS and isinstance(value, dict)
        else (limit(value, max_chars) if name in PARTS else value)
        for name, value in schema.items()
    }
    kind = schema.get("type")
    if kind == "string" and not _CLOSED & schema.keys():
        longest = _FORMATTED.get(str(schema.get("format")), max_chars)
        limited.setdefault("maxLength", max(longest, schema.get("minLength", 0)))
    elif kind == "integer" and not _CLOSED & schema.keys():
        if "exclusiveMaximum" not in schema:
            limited.setdefault("maximum", max(_LARGE, schema.get("minimum", 0)))
        if "exclusiveMinimum" not in schema:
            limited.setdefault("minimum", min(-_LARGE, schema.get("maximum", 0)))
    elif kind == "array":
        limited.setdefault("maxItems", max(_MANY, schema.get("minItems", 0)))
    return limited


def literal(text: str, added: Mapping[int, str]) -> str:
    """Fixed text; added tokens in it are matched as tokens, since text never matches them."""
    ids = {written: token_id for token_id, written in added.items()}
    pieces = [text]
    if ids:
        pattern = "|".join(re.escape(written) for written in sorted(ids, key=len, reverse=True))
        pieces = re.split(f"({pattern})", text)
    parts = [f"<[{ids[piece]}]>" if piece in ids else json.dumps(piece) for piece in pieces if piece]
    return " ".join(parts)


def call_schema(tools: Sequence[Tool], arguments_key: str) -> Json:
    """One call of one of the tools, as a JSON object."""
    definitions: Json = {}
    calls = []
    for number, tool in enumerate(tools):
        arguments = arguments_schema(tool)
        if refers(arguments):
            # Its references are relative to its own root.
            place = f"#/$defs/tool{number}"
            definitions[f"tool{number}"], arguments = moved(arguments, place), {"$ref": place}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool["name"]}, arguments_key: arguments},
                "required": ["name", arguments_key],
                "additionalProperties": False,
            }
        )
    schema: Json = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def argument_schema(arguments: Json, part: Json) -> Json:
    """One of a tool's parameters as a standalone schema; it may refer to any of the others."""
    if not refers(part):
        return part
    place = "#/$defs/tool"
    return {**moved(part, place), "$defs": {"tool": moved(arguments, place)}}


def arguments_schema(tool: Tool) -> Json:
    """A tool's parameters; like OpenAI's own API, closed unless the schema says otherwise."""
    return {"type": "object", "additionalProperties": False, **(tool.get("parameters") or {})}
