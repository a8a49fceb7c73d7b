"""Log-probs equal a plain transformers forward, whatever else the engine was doing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.types import GenerateRequest, SamplingParams, ScoreRequest, Token, Weights
from tests.engine.conftest import KERNEL, TOLERANCE, Reference, run_generation

TEXTS = [
    "The history of bread begins long before writing, when people first ground wild seeds. ",
    "def merge(a, b):\n    return sorted(a + b)\n",
    "In the harbour the boats lay still, and 12 men carried 345 crates of oranges ashore. ",
]


def assert_matches(
    prompt: Sequence[int], tokens: Sequence[Token], version: int, reference: Reference
) -> None:
    ids = [*prompt, *(token.id for token in tokens)]
    logprobs_TV = reference(ids, version)
    for i, token in enumerate(tokens):
        row = logprobs_TV[len(prompt) + i - 1]
        assert abs(float(row[token.id]) - token.logprob) < TOLERANCE
        expected = row[torch.tensor(token.top_ids)]
        assert torch.allclose(expected, torch.tensor(token.top_logprobs), atol=TOLERANCE)
        assert abs(float(row.max()) - token.top_logprobs[0]) < TOLERANCE
        assert token.policy_version == version


async def test_mixed_batch_matches_transformers(
    engine: LocalEngine, adapters: dict[int, Path], reference: Reference, tokenizer: Any
) -> None:
    for version, path in adapters.items():
        await engine.load(Weights.in_folder(version, path))
    jobs = []
    for i in range(9):
        text = TEXTS[i % 3] * (1 + 4 * (i % 2))
        prompt = tokenizer(text + f"Number {i}").input_ids
        jobs.append((prompt, i % 3, run_generation(engine, prompt, version=i % 3, temperature=0.8, seed=i)))
    results = await asyncio.gather(*(job for _, _, job in jobs))
    for (prompt, version, _), tokens in zip(jobs, results, strict=True):
        assert len(tokens) == 12
        assert_matches(prompt, tokens, version, reference)


async def test_next_turn_reuses_the_prefix_and_stays_exact(
    engine: LocalEngine, reference: Reference, tokenizer: Any
) -> None:
    prompt = tokenizer(TEXTS[0] * 6).input_ids
    first = await run_generation(engine, prompt, seed=1)
    longer = [*prompt, *(token.id for token in first), *tokenizer(" And then? " + TEXTS[2]).input_ids]
    cached = engine.status().cached_tokens
    second = await run_generation(engine, longer, seed=2)
    assert engine.status().cached_tokens < cached + len(longer)
    assert_matches(longer, second, 0, reference)


async def test_branches_of_one_prefix_do_not_disturb_each_other(
    engine: LocalEngine, reference: Reference, tokenizer: Any
) -> None:
    stem = tokenizer(TEXTS[0] * 5).input_ids
    prompts = [stem + tokenizer(tail).input_ids for tail in TEXTS]
    await run_generation(engine, prompts[0])
    results = await asyncio.gather(*(run_generation(engine, p, temperature=1.0, seed=3) for p in prompts))
    for prompt, tokens in zip(prompts, results, strict=True):
        assert_matches(prompt, tokens, 0, reference)


async def test_versions_never_share_keys_and_values(
    engine: LocalEngine, adapters: dict[int, Path], reference: Reference, tokenizer: Any
) -> None:
    await engine.load(Weights.in_folder(1, adapters[1]))
    prompt = tokenizer(TEXTS[1] * 5).input_ids
    for version in (0, 1, 0, 1):
        assert_matches(prompt, await run_generation(engine, prompt, version=version), version, reference)


async def test_score_matches_transformers(
    engine: LocalEngine, adapters: dict[int, Path], reference: Reference, tokenizer: Any
) -> None:
    await engine.load(Weights.in_folder(2, adapters[2]))
    ids = tokenizer(TEXTS[2] * 4).input_ids
    for version in (0, 2):
        for start in (1, 17, len(ids) - 1):
            scores = await engine.score(ScoreRequest(ids, start, top_k=5, policy_version=version))
            rows_TV = reference(ids, version)[start - 1 : len(ids) - 1]
            expected = rows_TV.gather(1, torch.tensor(ids[start:]).unsqueeze(1))[:, 0]
            assert torch.allclose(torch.tensor(scores.logprobs), expected, atol=TOLERANCE)
            top = rows_TV.gather(1, torch.tensor(scores.top_ids))
            assert torch.allclose(torch.tensor(scores.top_logprobs), top, atol=TOLERANCE)


async def cancel_after_one_token(engine: LocalEngine, prompt: Sequence[int]) -> None:
    stream = engine.generate(GenerateRequest(list(prompt), SamplingParams(1000)))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_random_interleaving(engine: LocalEngine, reference: Reference, tokenizer: Any) -> None:
    """Arrivals, cancellations and scorings at random moments leave every reply exact."""
    rng = random.Random(0)
    pieces = [tokenizer(text).input_ids for text in TEXTS]

    async def one(i: int) -> None:
        await asyncio.sleep(rng.random() * 0.5)
        prompt = [t for _ in range(rng.randint(1, 5)) for t in rng.choice(pieces)]
        if i % 5 == 4:
            await cancel_after_one_token(engine, prompt)
        elif i % 4 == 3:
            scores = await engine.score(ScoreRequest(prompt, 1))
            expected = reference(prompt, 0)[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1))[:, 0]
            assert torch.allclose(torch.tensor(scores.logprobs), expected, atol=TOLERANCE)
        else:
            tokens = await run_generation(engine, prompt, max_tokens=rng.randint(1, 10), seed=i)
            assert_matches(prompt, tokens, 0, reference)

    await asyncio.gather(*(one(i) for i in range(16)))


async def test_hidden_states_match_transformers(
    engine: LocalEngine, model_path: Path, tokenizer: Any
) -> None:
    from transformers import AutoModelForCausalLM

    ids = tokenizer(TEXTS[0] * 4).input_ids
    network = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    with torch.inference_mode():
        states = network(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer, hidden_only in product((0, 20), (False, True)):
        request = ScoreRequest(ids, len(ids) - 1, hidden_layer=layer, hidden_only=hidden_only)
        scores = await engine.score(request)
        assert scores.hidden is not None
        assert len(scores.logprobs) == (0 if hidden_only else 1)
        expected = states[layer + 1][0, -2]
        if KERNEL == "float":
            assert torch.allclose(torch.tensor(scores.hidden), expected, atol=1e-2, rtol=1e-3)
        assert (torch.tensor(scores.hidden) - expected).norm() < 0.03 * expected.norm()
    assert (await engine.score(ScoreRequest(ids, 5))).hidden is None
