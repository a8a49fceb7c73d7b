"""Constrained replies of the real model, and what the tokens say about the constraint."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.engine.grammar import Grammars
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.render.grammar import json_grammar
from openclaw_rl.types import GenerateRequest, SamplingParams, Token
from tests.engine.conftest import TOLERANCE, Reference

END = 2
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "kind": {"enum": ["town", "village"]}},
    "required": ["city", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(model_path: Path) -> Grammars:
    return Grammars(model_path, 49152, [END])


async def constrained(engine: LocalEngine, tokenizer: Any, seed: int) -> list[Token]:
    prompt = tokenizer("<|im_start|>user\nName a place.<|im_end|>\n<|im_start|>assistant\n").input_ids
    request = GenerateRequest(
        prompt,
        SamplingParams(120, seed=seed),
        stop_ids=frozenset({tokenizer.eos_token_id}),
        grammar=json_grammar(SCHEMA),
    )
    return [token async for token in engine.generate(request)]


async def test_replies_follow_the_schema(engine: LocalEngine, tokenizer: Any) -> None:
    for tokens in await asyncio.gather(*(constrained(engine, tokenizer, seed) for seed in range(6))):
        assert tokens[-1].finish_reason == "stop"
        value = json.loads(tokenizer.decode([token.id for token in tokens], skip_special_tokens=True))
        assert value.keys() == {"city", "kind"}
        assert value["kind"] in ("town", "village")


async def test_forced_tokens_are_marked_and_raw_log_probs_stay_raw(
    engine: LocalEngine, tokenizer: Any, reference: Reference
) -> None:
    prompt = tokenizer("<|im_start|>user\nName a place.<|im_end|>\n<|im_start|>assistant\n").input_ids
    tokens = await constrained(engine, tokenizer, 1)
    assert any(token.forced for token in tokens)
    assert not all(token.forced for token in tokens)
    expected_TV = reference([*prompt, *(token.id for token in tokens)], 0)
    for i, token in enumerate(tokens):
        assert abs(float(expected_TV[len(prompt) + i - 1, token.id]) - token.logprob) < TOLERANCE
        if token.forced:
            assert token.sampled_logprob == pytest.approx(0, abs=1e-5)


async def test_a_bad_schema_is_explained(engine: LocalEngine) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        engine.check_grammar(json_grammar({"type": "nonsense"}))
    with pytest.raises(ValueError, match="minimum"):
        engine.check_grammar(json_grammar({"type": "integer", "minimum": 5, "maximum": 2}))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "duration"},
        {"type": "string", "format": "email"},
        {"type": "string", "format": "uri"},
        {"type": "string", "pattern": "^[a-z ]+$"},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "array"}, "c": {"type": "string"}},
            "required": ["a", "b", "c"],
        },
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_reply_ends_before_its_tokens_do(grammars: Grammars, schema: Any, seed: int) -> None:
    """Nothing in these schemas says where to stop, and whoever draws here does not want to."""
    rng, text = random.Random(seed), b""
    state = grammars.start(json_grammar(schema, 64), 80)
    for num_left in range(80, 0, -1):
        token_id = rng.choice(state.allowed(num_left).nonzero().flatten().tolist())
        if token_id == END:
            break
        state.consume(token_id)
        text += grammars._table.written[token_id]
    assert token_id == END, text
    json.loads(text)


def test_an_error_says_what_is_wrong_and_not_how_we_ask(grammars: Grammars) -> None:
    with pytest.raises(ValueError, match="nowhere") as raised:
        grammars.check(json_grammar({"$ref": "#/$defs/nowhere"}))
    assert "x-guidance" not in str(raised.value)
    assert "%json" not in str(raised.value)
    assert "\n" not in str(raised.value)
