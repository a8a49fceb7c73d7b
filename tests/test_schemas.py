"""Schemas that no grammar can follow are followed as far as one can, and the reply says where it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.engine.grammar import Grammars
from openclaw_rl.render.grammar import json_grammar
from openclaw_rl.schemas import moved, relax
from openclaw_rl.testing import scripted_system

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "object", "propertyNames": TEXT, "additionalProperties": {"type": "number"}}, []),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, ["propertyNames"]),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, ["uniqueItems"]),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, []),
        ({"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]+$"}, ["pattern"]),
        ({"type": "string", "pattern": "^(?<year>[0-9]{4})$"}, []),
        ({"type": "string", "format": "binary"}, ["format binary"]),
        ({"type": "object", "not": {"required": ["a"]}}, ["not"]),
        ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["if", "then"]),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        ({"type": "array", "contains": TEXT}, ["contains"]),
        ({"oneOf": [TEXT, {"type": "integer"}]}, []),
        ({"oneOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "object"}]}, ["oneOf"]),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
                    for kind in ("cat", "dog")
                ]
            },
            [],
        ),
        ({"type": "object", "properties": {"not": TEXT, "format": TEXT}, "required": ["not"]}, []),
        ({"type": "object", "properties": {"a": {"items": {"not": {"type": "null"}}}}}, ["not"]),
    ],
)
def test_what_cannot_be_followed_is_named_and_left_out(
    schema: Any, names: list[str], model_path: Path
) -> None:
    relaxed, found = relax(schema)
    assert found == names
    Grammars(model_path, 49152, [2]).check(json_grammar(relaxed))


def test_names_of_properties_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"$ref": TEXT, "if": {"$ref": "#/$defs/A"}},
        "$defs": {"A": TEXT},
    }
    assert moved(schema, "#/$defs/t") == {
        "type": "object",
        "properties": {"$ref": TEXT, "if": {"$ref": "#/$defs/t/$defs/A"}},
        "$defs": {"A": TEXT},
    }


async def test_a_reply_says_what_was_relaxed(tmp_path: Any) -> None:
    system = scripted_system(tmp_path / "home")
    headers = {"authorization": f"Bearer {system.keys.key_of('default')}"}
    schema = {"type": "array", "items": TEXT, "uniqueItems": True}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    ask = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "not": {"type": "null"}}},
    }
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://test", headers=headers
    ) as client:
        shaped = await client.post("/v1/chat/completions", json={**ask, "response_format": shape})
        forced = await client.post(
            "/v1/chat/completions", json={**ask, "tools": [tool], "tool_choice": "required"}
        )
        free = await client.post("/v1/chat/completions", json=ask)
    assert shaped.headers["x-schema-relaxed"] == "uniqueItems"
    assert forced.headers["x-schema-relaxed"] == "not"
    assert "x-schema-relaxed" not in free.headers
    await system.close()
