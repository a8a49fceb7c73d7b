"""Types parameter values that a model wrote as bare text, by the tool's JSON schema."""

from __future__ import annotations

import json
from typing import Any

from openclaw_rl.types import Json

#: Without type information, only objects and arrays are distinguished from plain text.
_UNKNOWN = frozenset({"object", "array", "string"})
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def types_of(schema: Json | None) -> frozenset[str]:
    """The JSON types a schema allows."""
    return frozenset(_types(schema or {})) or _UNKNOWN


def _types(schema: Json) -> set[str]:
    declared = schema.get("type", [])
    found = {declared} if isinstance(declared, str) else set(declared)
    if not found:
        found = {_type(value) for value in schema.get("enum", ())}
    for key in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(key, ()):
            found |= _types(option)
    return found


def typed_json(text: str, types: frozenset[str]) -> str:
    """``text`` as JSON of one of ``types``, unchanged if it already is such JSON; else a string."""
    bare = text.strip()
    # Templates write Python's True and None.
    word = _WORDS.get(bare.lower(), bare)
    try:
        kind = _type(json.loads(word, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    fits = kind in types or (kind == "number" and "integer" in types)
    fits = fits or (kind == "null" and "string" not in types)
    return word if fits else json.dumps(text, ensure_ascii=False)


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
