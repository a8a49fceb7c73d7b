"""Checks replies against the client's full schema, if the grammar could enforce only part of it.

Nothing is fetched: a schema that refers to a URL cannot be checked. Backtracking in patterns is limited,
since clients are not trusted.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from openclaw_rl.types import ChatRequest, Json, Message

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
_PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
_MAX_NAMED, _MAX_CHARS = 5, 200


def schema_headers(request: ChatRequest, replies: Sequence[Message]) -> dict[str, str]:
    """Whether every reply follows the schema, and if not, which keywords are violated where."""
    try:
        broken = [problem for reply in replies for problem in _problems(request, reply)]
    except (ValueError, jsonschema_rs.ReferencingError):
        return {"x-schema-valid": "unknown"}
    if not broken:
        return {"x-schema-valid": "true"}
    named = list(dict.fromkeys(broken))[:_MAX_NAMED]
    return {"x-schema-valid": "false", "x-schema-violations": ", ".join(named)}


def _problems(request: ChatRequest, reply: Message) -> list[str]:
    if not request.must_call:
        return _broken(request.json_schema or {}, reply["content"] or "")
    schemas = {tool["name"]: tool["parameters"] for tool in request.must_call}
    calls = reply.get("tool_calls") or []
    if not calls:
        return ["no call"]
    return [problem for call in calls for problem in _broken(schemas[call["name"]], call["arguments"])]


def _broken(schema: Json, text: str) -> list[str]:
    validator = jsonschema_rs.validator_for(
        schema, validate_formats=True, pattern_options=_PATTERNS, retriever=_fetch_nothing
    )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ["not JSON"]
    return [_said(error) for error in validator.iter_errors(value)]


def _said(error: jsonschema_rs.ValidationError) -> str:
    """Keyword and location, without the reply's text; quoted, since property names may hold any character."""
    keyword = next((str(part) for part in reversed(error.schema_path) if isinstance(part, str)), "schema")
    place = "".join(f"/{part}" for part in error.instance_path) or "/"
    return quote(f"{keyword} at {place}"[:_MAX_CHARS], safe=_PRINTABLE)


def _fetch_nothing(uri: str) -> Any:
    raise ValueError("schemas are not fetched")
