"""A call written by a grammar is a call its family's parser reads back, for every family."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from openclaw_rl.render import RENDERERS, collect
from openclaw_rl.render.grammar import limit

TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 20},
                "units": {"enum": ["C", "F"]},
            },
            "required": ["city", "days"],
        },
    },
    {"name": "now"},
]

#: As pydantic and zod write a type that is used twice, and one that holds itself.
REFERRING = [
    {
        "name": "book",
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {
                "Place": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "maxLength": 8},
                        "kind": {"$ref": "#/$defs/Kind"},
                    },
                    "required": ["city", "kind"],
                    "additionalProperties": False,
                },
                "Kind": {"enum": ["town", "village"], "type": "string"},
            },
            "type": "object",
            "properties": {"start": {"$ref": "#/$defs/Place"}, "end": {"$ref": "#/$defs/Place"}},
            "required": ["start", "end"],
            "additionalProperties": False,
        },
    },
    {
        "name": "tree",
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        },
    },
]


def walk(tokenizer: Any, grammar: str, rng: random.Random, stop_ids: frozenset[int]) -> list[int]:
    """A random reply that the grammar allows, texts cut short so that it ends."""
    backend = LLTokenizer(tokenizer.backend_tokenizer.to_str(), eos_token=sorted(stop_ids))
    matcher = LLMatcher(backend, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    vocab = len(tokenizer)
    mask = allocate_token_bitmask(1, vocab)
    ids: list[int] = []
    closings = [tokenizer.encode(text, add_special_tokens=False) for text in ("\n</parameter>", '"')]
    for _ in range(400):
        fill_next_token_bitmask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab]).tolist()
        assert allowed
        if stop_ids & set(allowed):
            return ids
        printable = [i for i in allowed if tokenizer.decode([i]).isprintable()]
        chosen = [rng.choice(printable or allowed)]
        # Somewhere inside a free text, end it: chance alone would write for ever.
        if len(allowed) > 50 and rng.random() < 0.3:
            chosen = next(
                (c for c in closings if matcher.deep_copy().try_consume_tokens(c) == len(c)), chosen
            )
        assert matcher.consume_tokens(chosen)
        ids += chosen
    pytest.fail(f"no end after 400 tokens: {tokenizer.decode(ids)!r}")


@pytest.mark.parametrize("family", list(RENDERERS))
@pytest.mark.parametrize("tools", [REFERRING[:1], REFERRING[1:], REFERRING], ids=["defs", "itself", "both"])
def test_a_forced_call_of_a_tool_whose_schema_refers_to_itself(
    family: str, tools: Any, renderer_of: Callable[[str], Any], tokenizer_of: Callable[[str], Any]
) -> None:
    renderer, tokenizer = renderer_of(family), tokenizer_of(family)
    for seed in range(3):
        ids = walk(tokenizer, renderer.tool_grammar(tools), random.Random(seed), renderer.stop_ids)
        detokenizer, parser = renderer.detokenizer(), renderer.parser([], tools)
        text = "".join(detokenizer.feed(i) for i in ids) + detokenizer.finish()
        (call,) = collect([*parser.feed(text), *parser.finish()]).tool_calls
        arguments = json.loads(call.arguments)
        if call.name == "book":
            assert {arguments[end]["kind"] for end in ("start", "end")} <= {"town", "village"}
        else:
            assert all(child.keys() == {"name", "children"} for child in arguments["children"])


@pytest.mark.parametrize("family", list(RENDERERS))
@pytest.mark.parametrize("seed", range(5))
def test_a_forced_call_parses(
    family: str, seed: int, renderer_of: Callable[[str], Any], tokenizer_of: Callable[[str], Any]
) -> None:
    renderer, tokenizer = renderer_of(family), tokenizer_of(family)
    named = TOOLS[:1] if seed % 2 else TOOLS
    ids = walk(tokenizer, renderer.tool_grammar(named), random.Random(seed), renderer.stop_ids)
    detokenizer, parser = renderer.detokenizer(), renderer.parser([], named)
    text = "".join(detokenizer.feed(i) for i in ids) + detokenizer.finish()
    reply = collect([*parser.feed(text), *parser.finish()])
    assert len(reply.tool_calls) == 1, text
    assert not reply.content.strip()
    call = reply.tool_calls[0]
    assert call.name in [tool["name"] for tool in named]
    arguments = json.loads(call.arguments)
    if call.name == "get_weather":
        assert isinstance(arguments["city"], str)
        assert 1 <= arguments["days"] <= 20
        assert arguments.get("units", "C") in ("C", "F")


def test_json_grammar_follows_the_schema(
    renderer_of: Callable[[str], Any], tokenizer_of: Callable[[str], Any]
) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    renderer, tokenizer = renderer_of("qwen3"), tokenizer_of("qwen3")
    ids = walk(tokenizer, renderer.json_grammar(schema), random.Random(0), renderer.stop_ids)
    assert json.loads(tokenizer.decode(ids)).keys() == {"ok"}


def test_open_ends_are_limited_and_stated_ones_kept() -> None:
    schema = {
        "type": "object",
        "properties": {
            "open": {"type": "string"},
            "short": {"type": "string", "maxLength": 5},
            "chosen": {"type": "string", "enum": ["a"]},
            "number": {"type": "integer", "minimum": 3},
            "list": {"type": "array", "items": {"type": "string"}},
            "type": {"type": "integer"},
        },
        "$defs": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    }
    limited = limit(schema, 99)
    properties = limited["properties"]
    assert properties["open"]["maxLength"] == 99
    assert properties["short"]["maxLength"] == 5
    assert properties["chosen"] == schema["properties"]["chosen"]
    assert (properties["number"]["minimum"], properties["number"]["maximum"]) == (3, 10**15)
    assert properties["list"] == {
        "type": "array",
        "items": {"type": "string", "maxLength": 99},
        "maxItems": 64,
    }
    assert limited["$defs"]["x"]["anyOf"][0]["maxLength"] == 99
    assert schema["properties"]["open"] == {"type": "string"}
