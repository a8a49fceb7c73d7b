"""Constrained replies of the real model, and what the tokens say about the constraint."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.render.grammar import json_grammar
from openclaw_rl.types import GenerateRequest, SamplingParams, Token
from tests.engine.conftest import TOLERANCE, Reference

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "kind": {"enum": ["town", "village"]}},
    "required": ["city", "kind"],
    "additionalProperties": False,
}


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
