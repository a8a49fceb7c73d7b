"""SkyRL trains and a vLLM samples for it: the engine's contract, and learning from what the vLLM sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.config import EngineConfig, TrainConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.engine.remote_server import MAX_TOP
from openclaw_rl.engine.sampled_from import bounded
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.engine.vllm_server import VllmServer, server_flags
from openclaw_rl.testing import tiny_model
from openclaw_rl.testing.contracts import EngineContract
from openclaw_rl.testing.contracts.trainer import example
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.types import (
    BASE_VERSION,
    Batch,
    Engine,
    Example,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    Source,
    Token,
    Trainer,
    Weights,
)
from tests.faulty import FaultyLine, faulty_line
from tests.tinker.server_process import ENVIRONMENTS, SkyRL, free_url, running

pytestmark = [pytest.mark.tinker, pytest.mark.filterwarnings("default")]
PROMPT = [5, 6, 7, 8, 9, 10]
FLAGS = "--enforce-eager --dtype float32 --max-model-len 512"
#: Without the head: vLLM's build for CPUs dies of it when it scores several texts at once.
LAYERS = "--lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), head_dim=32)


@pytest.fixture(scope="module")
def line(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyLine]:
    """To a vLLM that reads adapters from the folder where SkyRL puts them."""
    python = str(ENVIRONMENTS / "vllm" / "bin" / "python")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_PLUGINS": "lora_filesystem_resolver",
            "VLLM_LORA_RESOLVER_CACHE_DIR": str(tmp_path_factory.mktemp("adapters")),
        }.items():
            patch.setenv(name, value)
        server = VllmServer(model, server_flags(8, 4, 16, f"{FLAGS} {LAYERS}"), python)
        with faulty_line(server.socket) as line:
            yield line
        server.close()


@pytest.fixture(scope="module")
def skyrl(line: FaultyLine, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRL]:
    adapters = tmp_path_factory.getbasetemp() / "adapters0"
    assert adapters.is_dir()
    more = ("--external-inference-url", line.url, "--external-inference-lora-base", str(adapters))
    with running(SkyRL(model, tmp_path_factory.mktemp("skyrl"), free_url(), more=more)) as server:
        yield server


@pytest.fixture(scope="module")
def place(skyrl: SkyRL) -> dict[str, str]:
    return {"url": skyrl.url, "base_model": str(skyrl.model)}


@pytest.fixture(scope="module")
def make(place: dict[str, str], model: Path) -> Callable[..., Trainer]:
    def make_trainer(**changes: Any) -> Trainer:
        settings = TrainConfig(trainer="tinker", lora_rank=4, trainer_options=place)
        return create_trainer(TrainerParts(model, "tiny", replace(settings, **changes)))

    return make_trainer


@pytest.fixture(scope="module")
def two_versions(make: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    trainer, found = make(learning_rate=0.02), []
    for version in (1, 2):
        trainer.resume(None)
        trainer.step(Batch([example(version)]), BASE_VERSION)
        uri = trainer.save(tmp_path_factory.mktemp("version"), {})
        assert uri is not None
        found.append(Weights(version, uri))
    return found


@pytest.fixture
async def engine(place: dict[str, str], model: Path) -> AsyncIterator[Engine]:
    parts = EngineParts(model, EngineConfig(engine="tinker", engine_options={**place, "patience_s": 60}))
    engine = await asyncio.to_thread(create_engine, parts)
    yield engine
    await engine.close()


class TestEngine(EngineContract):
    tolerance = 1e-3

    @pytest.fixture
    def weights(self, two_versions: list[Weights]) -> list[Weights]:
        return two_versions


async def reply_of(engine: Engine, params: SamplingParams, version: int) -> Example:
    request = GenerateRequest(PROMPT, params, policy_version=version)
    tokens: list[Token] = [token async for token in engine.generate(request)]
    ids, own = [token.id for token in tokens], [token.logprob for token in tokens]
    return Example(
        PROMPT, ids, np.array(ids, np.int32)[:, None], np.array(own, np.float32)[:, None],
        np.full((len(ids), 1), -0.2, np.float32), Source("own", ("t",), "ann", policy_version=version),
        num_free=len(ids),
    )  # fmt: skip


async def test_it_learns_from_replies_whose_log_probs_the_trainer_agrees_with(
    engine: Engine, make: Callable[..., Trainer], tmp_path: Path
) -> None:
    """At any temperature, since this sampler tells the likeliest tokens."""
    assert engine.capabilities.sampled_logprobs
    assert engine.capabilities.scores_candidates
    trainer = make(learning_rate=0.02)
    await asyncio.to_thread(trainer.resume, None)
    text, shares = ScoreRequest([*PROMPT, 68], len(PROMPT)), []
    for version in range(3):
        found = [
            await reply_of(engine, SamplingParams(4, temperature=0.8, seed=seed), version)
            for seed in range(4)
        ]
        report = await asyncio.to_thread(trainer.step, Batch([*found, _wanted(version)]), version)
        assert report.mismatch == pytest.approx(0, abs=1e-3)
        uri = await asyncio.to_thread(trainer.save, tmp_path, {})
        assert uri is not None
        await engine.load(Weights(version + 1, uri))
        shares.append((await engine.score(replace(text, policy_version=version + 1))).logprobs[0])
    print(f"\nlog-prob of the rewarded token after each step: {[round(each, 2) for each in shares]}")
    assert shares[-1] > (await engine.score(text)).logprobs[0] + 0.5


def _wanted(version: int) -> Example:
    """A rewarded token; its log-prob was not recorded, so it says nothing about the mismatch."""
    ids, unknown, reward = np.array([[68]], np.int32), np.ones((1, 1)), np.array([[3.0]])
    source = Source("accepted", ("t",), "ann", policy_version=version)
    return Example(PROMPT, [68], ids, np.float32(unknown), np.float32(reward), source, num_free=1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(24, seed=1),
        SamplingParams(24, temperature=0.7, seed=2),
        SamplingParams(24, temperature=1.3, top_p=0.9, seed=3),
        SamplingParams(24, top_k=5, seed=4),
    ],
    ids=lambda p: f"T{p.temperature}-p{p.top_p}-k{p.top_k}",
)
async def test_log_probs_are_those_of_transformers(
    engine: Engine, model: Path, params: SamplingParams
) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = [token async for token in engine.generate(GenerateRequest(PROMPT, params))]
    ids = torch.tensor([[*PROMPT, *(token.id for token in tokens)]])
    with torch.inference_mode():
        rows = torch.log_softmax(network(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    sampler = Sampler(bounded(params, MAX_TOP))
    raw, drawn = [], []
    for token, row in zip(tokens, rows, strict=True):
        raw.append(abs(token.logprob - float(row[token.id])))
        kept_ids, kept = sampler._truncate(torch.log_softmax(row / params.temperature, -1))
        exact = kept[token.id] if kept_ids is None else kept[kept_ids == token.id]
        drawn.append(abs(token.sampled_logprob - float(exact)))
    print(f"\n{params}: raw within {max(raw):.1e}, sampled from within {max(drawn):.1e} nats")
    assert max(raw) < 1e-3
    assert max(drawn) < 1e-3


async def test_the_sampler_is_cut_off_and_comes_back(engine: Engine, line: FaultyLine) -> None:
    request = GenerateRequest(PROMPT, SamplingParams(4))
    line.cut()
    with pytest.raises(ConnectionError):
        [token async for token in engine.generate(request)]
    line.mend()
    assert [token async for token in engine.generate(request)]
