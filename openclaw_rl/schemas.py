"""JSON schemas as clients send them: what a grammar cannot follow is left out by name, and what refers to
itself can stand inside another schema.

Generated schemas (pydantic, zod, OpenAPI) hold keywords that say something about a finished value. Like the
large providers we constrain what can be constrained; the reply says which keywords were not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from openclaw_rl.types import Json

#: Keywords whose value is a schema or a list of them, and those that hold schemas by name.
PARTS = frozenset({"items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"})
NAMED_PARTS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: Only a finished value can be checked against these.
_UNCHECKED = frozenset({
    "propertyNames", "uniqueItems", "not", "if", "then", "else", "dependentRequired", "dependentSchemas",
    "dependencies", "contains", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems",
})  # fmt: skip
#: Names are texts in any case.
_ANY_NAME: tuple[Any, ...] = (True, {}, {"type": "string"})
_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
_NOT_REGULAR = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")


def relax(schema: Json) -> tuple[Json, list[str]]:
    """The schema without what no grammar can follow, and the names of what was asked for in vain."""
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
    """The schema with an end to texts that have a pattern: many of them let anything stand around a match."""

    def end(part: Json) -> Json:
        is_open = part.get("type") == "string" and "pattern" in part and "maxLength" not in part
        return {**part, "maxLength": max(max_chars, part.get("minLength", 0))} if is_open else part

    return _map(schema, end)  # type: ignore[no-any-return]


def _asks(name: str, value: Any) -> bool:
    if name == "propertyNames":
        return value not in _ANY_NAME
    return name != "uniqueItems" or value is not False


def _are_disjoint(options: list[Any]) -> bool:
    """By their types, or by a property that is constant in each."""
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
    """Whether some part of it points at another."""
    if isinstance(schema, list):
        return any(map(refers, schema))
    return isinstance(schema, dict) and ("$ref" in schema or any(map(refers, schema.values())))


def moved(schema: Any, root: str) -> Any:
    """The schema as it reads when it stands at ``root`` of another, such as ``#/$defs/tool``."""

    def move(part: Json) -> Json:
        # An id of its own would make the pointers begin there instead.
        kept = {name: value for name, value in part.items() if name not in ("$id", "$schema")}
        if isinstance(target := kept.get("$ref"), str) and target.startswith("#"):
            kept["$ref"] = root + target[1:]
        return kept

    return _map(schema, move)


def _map(schema: Any, change: Callable[[Json], Json]) -> Any:
    """Every part of a schema, changed; the names of properties are no keywords."""
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
