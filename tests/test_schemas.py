"""Schemas that no grammar can follow are followed as far as one can, and the reply says where it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import torch

from openclaw_rl.engine.grammar import Grammars
from openclaw_rl.render.grammar import json_grammar
from openclaw_rl.schemas import end_patterns, moved, relax
from openclaw_rl.testing import scripted_system

TEXT = {"type": "string"}
Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(scope="module")
def grammars(model_path: Path) -> Grammars:
    return Grammars(model_path, 49152, [2])


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
    schema: Any, names: list[str], grammars: Grammars
) -> None:
    relaxed, found = relax(schema)
    assert found == names
    grammars.check(json_grammar(relaxed))


@pytest.fixture(scope="module")
def going_on(grammars: Grammars) -> torch.Tensor:
    """Tokens that end nothing."""
    return torch.tensor([not set(b'"}]') & set(text) for text in grammars._table.written])


def landed(grammars: Grammars, schema: Any, max_tokens: int, going_on: torch.Tensor) -> str | None:
    """A reply by somebody who never ends what may go on; None if it did not end in time."""
    state, chance, said = grammars.start(json_grammar(schema, max_tokens // 2), max_tokens), Random(0), b""
    for num_left in range(max_tokens, 0, -1):
        allowed = state.allowed(num_left)
        allowed[2] = False
        tokens = (allowed & going_on if (allowed & going_on).any() else allowed).nonzero().flatten()
        if not len(tokens):
            return said.decode()
        token = int(tokens[chance.randrange(len(tokens))])
        said += grammars._table.written[token]
        state.consume(token)
    return None


OPEN: dict[str, Any] = {
    "number": {"type": "number"},
    "above zero": {"type": "number", "exclusiveMinimum": 0},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": {"type": "string", "format": "email"},
    "uri": {"type": "string", "format": "uri"},
    "anything": {},
    "open object": {"type": "object"},
    "record": {"type": "object", "additionalProperties": {"type": "number"}},
    "pattern": {"type": "string", "pattern": "^[a-z]+$"},
    "loose pattern": {"type": "string", "pattern": "[0-9]+"},
    "nullable": {"type": ["string", "null"]},
    "itself": {"type": "array", "items": {"$ref": "#"}},
}


@pytest.mark.parametrize("schema", OPEN.values(), ids=list(OPEN))
def test_what_a_schema_leaves_open_ends_within_the_tokens(
    schema: Any, grammars: Grammars, going_on: torch.Tensor
) -> None:
    said = landed(grammars, end_patterns(schema, 48), 96, going_on)
    assert said is not None
    json.loads(said)


async def test_a_pattern_may_ask_for_more_than_the_limit(ask: Ask) -> None:
    schema = {"type": "string", "pattern": "^[a-z]{200}$"}
    answer = await ask('"' + "a" * 200 + '"', **shape(schema), max_tokens=300)
    assert answer.json()["choices"][0]["message"]["content"] == '"' + "a" * 200 + '"'


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


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Ask]:
    """Ask for a reply of a schema, where the model says whatever the test wants it to."""
    system = scripted_system(tmp_path / "home")
    headers = {"authorization": f"Bearer {system.keys.key_of('default')}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://test", headers=headers
    ) as client:

        async def asking(reply: str, path: str = "chat/completions", **options: Any) -> httpx.Response:
            system.engine.say(reply)  # type: ignore[attr-defined]
            said = {"role": "user", "content": "Hi"}
            named = {"input": [said]} if path == "responses" else {"messages": [said]}
            answer = await client.post(f"/v1/{path}", json={"model": "scripted", **named, **options})
            assert answer.status_code == 200, answer.text
            return answer

        yield asking
    await system.close()


def shape(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def forced(parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


SET = {"type": "array", "items": TEXT, "uniqueItems": True}


async def test_a_reply_says_what_was_relaxed(ask: Ask) -> None:
    assert (await ask("[]", **shape(SET))).headers["x-schema-relaxed"] == "uniqueItems"
    parameters = {"type": "object", "not": {"type": "null"}}
    assert (await ask("", **forced(parameters))).headers["x-schema-relaxed"] == "not"
    free = await ask("Hello.")
    followed = await ask('["a"]', **shape({"type": "array", "items": TEXT}))
    for answer in (free, followed):
        assert not [name for name in answer.headers if name.startswith("x-schema")]


OBJECT = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}


@pytest.mark.parametrize(
    ("schema", "good", "bad", "violation"),
    [
        (SET, '["a", "b"]', '["a", "a"]', "uniqueItems at /"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, '{"a": 1}', '{"b": 1}', "pattern at /"),
        ({"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]+$"}, '"a1"', '"ab"', "pattern at /"),
        ({**OBJECT, "not": {"required": ["a", "b"]}}, '{"a": "x"}', '{"a": "x", "b": "y"}', "not at /"),
        (
            {**OBJECT, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
            '{"b": "x"}',
            '{"a": "x"}',
            "required at /",
        ),
        ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "{}", '{"a": "x"}', "dependentRequired at /"),
        (
            {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 5}]},
            "9",
            "3",
            "oneOf at /",
        ),
        (
            {"type": "object", "properties": {"tags": SET}},
            "{}",
            '{"tags": ["a", "a"]}',
            "uniqueItems at /tags",
        ),
        ({"type": "array", "contains": TEXT}, '["a"]', "[1", "not JSON"),
        ({"type": "string", "format": "idn-email"}, '"a@b.example"', '"nobody"', "format at /"),
    ],
)
async def test_what_was_relaxed_is_checked(
    schema: dict[str, Any], good: str, bad: str, violation: str, ask: Ask
) -> None:
    fine = (await ask(good, **shape(schema))).headers
    assert (fine["x-schema-valid"], fine.get("x-schema-violations")) == ("true", None)
    broken = (await ask(bad, **shape(schema))).headers
    assert (broken["x-schema-valid"], broken["x-schema-violations"]) == ("false", violation)
    streamed = await ask(bad, stream=True, **shape(schema))
    assert "x-schema-valid" not in streamed.headers
    said, _, end = streamed.text.partition("data: [DONE]")
    assert f": x-schema-valid: false\n\n: x-schema-violations: {violation}\n\n" in said
    assert not end.strip()


async def test_a_forced_call_is_checked_in_every_dialect(ask: Ask) -> None:
    parameters = {"type": "object", "properties": {"tags": SET}, "required": ["tags"]}
    call = '<tool_call>\n{"name": "f", "arguments": {"tags": ["a", "a"]}}\n</tool_call>'
    flat = {"type": "function", "name": "f", "parameters": parameters}
    anthropic = {"name": "f", "input_schema": parameters}
    for answer in (
        await ask(call, **forced(parameters)),
        await ask(call, "responses", tools=[flat], tool_choice="required"),
        await ask(call, "messages", tools=[anthropic], tool_choice={"type": "any"}, max_tokens=64),
    ):
        assert answer.headers["x-schema-violations"] == "uniqueItems at /tags"
    assert (await ask("Hello.", **forced(parameters))).headers["x-schema-violations"] == "no call"


async def test_what_a_schema_refers_to_is_not_fetched(ask: Ask) -> None:
    """The grammar refuses such a reference; one below a keyword that it never reads arrives at the check."""
    schema = {"type": "object", "not": {"$ref": "http://127.0.0.1:9/schema"}}
    assert (await ask("{}", **shape(schema))).headers["x-schema-valid"] == "unknown"


async def test_a_pattern_that_never_ends_is_given_up(ask: Ask) -> None:
    schema = {"type": "string", "pattern": "^(?=x*)(a|aa|aaa)+$(?!b)"}
    answer = await ask('"' + "a" * 200 + '!"', **shape(schema))
    assert answer.headers["x-schema-valid"] == "false"


async def test_names_in_violations_fit_into_a_header(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"größe\r\n": SET}}
    answer = await ask('{"größe\\r\\n": ["a", "a"]}', **shape(schema))
    assert answer.headers["x-schema-violations"] == "uniqueItems at /gr%C3%B6%C3%9Fe%0D%0A"
