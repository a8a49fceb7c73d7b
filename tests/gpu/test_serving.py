"""The engine with tokens sampled as on a GPU; without one, the decoder runs on the CPU."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton", reason="pip install triton, or make test-gpu")

from openclaw_rl.engine.gpu_sampler import GpuSampler
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.types import GenerateRequest, SamplingParams, ScoreRequest, Token

pytestmark = pytest.mark.triton
PROMPT = [5, 9, 33, 21, 80]
PARAMS: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_p": 0.9},
    {"seed": 3, "presence_penalty": 0.5},  # sampled on the CPU
    {"seed": 4, "temperature": 0.0},
    {"seed": 5, "top_k": 3},
]


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=256, initializer_range=0.2, eos_token_id=2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    kernel = "auto" if torch.cuda.is_available() else "float"
    engine = LocalEngine(tmp_path, LocalEngineOptions(kernel=kernel, max_running=8, dtype="fp32"))
    if not torch.cuda.is_available():
        engine._scheduler._gpu_sampler = GpuSampler(torch.device("cpu"))
    return engine


async def generate(engine: LocalEngine, stop_ids: frozenset[int] = frozenset(), **params: Any) -> list[Token]:
    request = GenerateRequest(PROMPT, SamplingParams(10, **params), stop_ids, top_logprobs=4)
    return [token async for token in engine.generate(request)]


async def test_replies_in_company_and_alone(engine: LocalEngine) -> None:
    """Rows sampled on the GPU and on the CPU in one batch, while something is scored."""
    score = engine.score(ScoreRequest([*PROMPT, *PROMPT], 2, top_k=2))
    together = await asyncio.gather(*(generate(engine, **params) for params in PARAMS))
    assert len((await score).logprobs) == 8
    for params, tokens in zip(PARAMS, together, strict=True):
        assert [token.finish_reason for token in tokens] == [None] * 9 + ["length"]
        assert [token.id for token in await generate(engine, **params)] == [token.id for token in tokens]
        scores = await engine.score(ScoreRequest([*PROMPT, *(token.id for token in tokens)], len(PROMPT)))
        assert [token.logprob for token in tokens] == pytest.approx(scores.logprobs, abs=1e-3)
        assert all(len(token.top_ids) == 4 for token in tokens)
    await engine.close()


async def test_a_reply_ends_at_a_stop_token(engine: LocalEngine) -> None:
    tokens = await generate(engine, **PARAMS[3])
    stop_id = tokens[4].id
    ended = await generate(engine, frozenset({stop_id}), **PARAMS[3])
    assert [token.id for token in ended] == [token.id for token in tokens][: len(ended)]
    assert ended[-1].id == stop_id
    assert ended[-1].finish_reason == "stop"
    await engine.close()
