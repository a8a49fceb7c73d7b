"""Grammars for replies that must have a shape, in llguidance's dialect of Lark.

JSON is asked for with fixed separators: a small model that may choose white space can spend its
whole reply on it. What a schema means, and whether it is valid at all, is the engine's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from openclaw_rl.types import Json, Tool

_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_rule(schema: Json) -> str:
    """An expression that matches one JSON value of the schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': _SEPARATORS}, ensure_ascii=False)}"


def json_grammar(schema: Json) -> str:
    return f"start: value\nvalue: {json_rule(schema)}\n"


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
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, arguments_key: arguments_schema(tool)},
            "required": ["name", arguments_key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def arguments_schema(tool: Tool) -> Json:
    """A tool's parameters; like OpenAI's own API, closed unless the schema says otherwise."""
    return {"type": "object", "additionalProperties": False, **(tool.get("parameters") or {})}
