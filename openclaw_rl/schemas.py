"""Prepares clients' JSON schemas for grammars: removes keywords that no grammar can enforce and names them,
and rewrites references so that a schema can be embedded in another.

Generated schemas (pydantic, zod, OpenAPI) contain keywords that can only be checked on a finished value. Like
the large providers, we enforce what can be enforced; the reply says which keywords were not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from openclaw_rl.types import Json

#: Keywords whose value is a schema or a list of schemas, and keywords that map names to schemas.
PARTS = frozenset({"items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"})
NAMED_PARTS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: Keywords that can only be checked on a finished value.
_UNCHECKED = frozenset({
    "propertyNames", "uniqueItems", "not", "if", "then", "else", "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems",
})  # fmt: skip
#: Values of ``propertyNames`` that restrict nothing, since names are strings anyway.
_ANY_NAME: tuple[Any, ...] = (True, {}, {"type": "string"})
_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
_NOT_REGULAR = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")


def relax(schema: Json) -> tuple[Json, list[str]]:
    """The schema without keywords that no grammar can enforce, and the names of those keywords."""
    relaxed: set[str] = set()
    return _map(schema, lambda part: _relax_one(part, relaxed)), sorted(relaxed)


def _relax_one(part: Json, relaxed: set[str]) -> Json:
    relaxed |= {name for name in _UNCHECKED & part.keys() if _asks(name, part[name])}
    kept = {name: value for name, value in part.items() if name not in _UNCHECKED}
    if isinstance(pattern := kept.get("pattern"), str) and _NOT_REGULAR.search(pattern):
        del kept["pattern"]
        relaxed.add("pattern")
    format_ = kept.get("format")
    if isinstance(format_, str) and kept.get("type") == "string" and format_ not in _FORMATS:
        del kept["format"]
        relaxed.add(f"format {format_}" if format_.isascii() and format_.isprintable() else "format")
    if isinstance(options := kept.get("oneOf"), list) and not _are_disjoint(options):
        relaxed.add("oneOf")
    return kept


def end_patterns(schema: Json, max_chars: int) -> Json:
    """The schema with a length limit for strings with a pattern: many patterns allow text around a match."""

    def end(part: Json) -> Json:
        is_open = part.get("type") == "string" and "pattern" in part and "maxLength" not in part
        return {**part, "maxLength": max(max_chars, part.get("minLength", 0))} if is_open else part

    return _map(schema, end)  # type: ignore[no-any-return]


def _asks(name: str, value: Any) -> bool:
    if name == "propertyNames":
        return value not in _ANY_NAME
    return name != "uniqueItems" or value is not False


def _are_disjoint(options: list[Any]) -> bool:
    """Whether their types differ, or a property has a different constant in each."""
    if not all(isinstance(option, dict) for option in options):
        return False
    types = [option.get("type") for option in options]
    if all(isinstance(kind, str) for kind in types) and len(set(types)) == len(types):
        return "integer" not in types or "number" not in types
    constants = [_constants(option) for option in options]
    names = set.intersection(*map(set, constants)) if constants else set()
    return any(len({repr(each[name]) for each in constants}) == len(options) for name in names)


def _constants(option: Json) -> Json:
    properties = option.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: part["const"] for name, part in properties.items() if _has(part, "const")}


def _has(part: Any, name: str) -> bool:
    return isinstance(part, dict) and name in part


def refers(schema: Any) -> bool:
    """Whether any part of it is a reference."""
    if isinstance(schema, list):
        return any(map(refers, schema))
    return isinstance(schema, dict) and ("$ref" in schema or any(map(refers, schema.values())))


def moved(schema: Any, root: str) -> Any:
    """The schema rewritten for embedding at ``root`` of another, such as ``#/$defs/tool``."""

    def move(part: Json) -> Json:
        # Its own ``$id`` would become the base of the references.
        kept = {name: value for name, value in part.items() if name not in ("$id", "$schema")}
        if isinstance(target := kept.get("$ref"), str) and target.startswith("#"):
            kept["$ref"] = root + target[1:]
        return kept

    return _map(schema, move)


def _map(schema: Any, change: Callable[[Json], Json]) -> Any:
    """Apply ``change`` to every subschema; property names are not treated as keywords."""
    if isinstance(schema, list):
        return [_map(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _map(part, change) for key, part in value.items()}
        if name in NAMED_PARTS and isinstance(value, dict)
        else (_map(value, change) if name in PARTS else value)
        for name, value in change(schema).items()
    }
