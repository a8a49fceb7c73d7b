"""SkyRL trains, vLLM samples: the same engine and trainer, where versions are files and all is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from openclaw_rl.config import EngineConfig, TrainConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.testing.contracts import EngineContract
from openclaw_rl.testing.contracts.trainer import example
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.types import BASE_VERSION, Batch, Engine, ScoreRequest, Weights
from tests.openclaw.client import free_port
from tests.tinker.conftest import SkyRL

VLLM = Path(__file__).parents[2] / ".venv-engines" / "vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.tinker,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not VLLM.exists(), reason="needs scripts/engine-venvs vllm, too"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As small as vLLM takes it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from openclaw_rl.testing.fakes import byte_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("model"), byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sampler(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A vLLM that loads what SkyRL saves, by name."""
    adapters, url = tmp_path_factory.mktemp("adapters"), f"http://127.0.0.1:{free_port()}"
    command = [str(VLLM), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--enable-lora",
               "--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--max-lora-rank", "8",
               "--enforce-eager", "--dtype", "float32", "--max-model-len", "512"]  # fmt: skip
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_PLUGINS": "lora_filesystem_resolver",
        "VLLM_LORA_RESOLVER_CACHE_DIR": str(adapters), "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    log = adapters.parent / "vllm.log"
    with log.open("ab") as words:
        process = subprocess.Popen(
            command, env=environment, stdout=words, stderr=words, start_new_session=True
        )
    try:
        for _ in range(1200):
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                httpx.get(f"{url}/health", timeout=2).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.25)
        yield url, adapters
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def split(
    model: Path, sampler: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SkyRL]:
    server = SkyRL(model, tmp_path_factory.mktemp("skyrl"), f"http://127.0.0.1:{free_port()}")
    server.more = ["--external-inference-url", sampler[0], "--external-inference-lora-base", str(sampler[1])]
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def two_versions(split: SkyRL, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    options = {"url": split.url, "base_model": str(split.model), "reduction": "mean"}
    settings = TrainConfig(trainer="tinker", lora_rank=4, learning_rate=0.02, trainer_options=options)
    trainer = create_trainer(TrainerParts(split.model, "small", settings))
    trainer.resume(None)
    found = []
    for version in (1, 2):
        trainer.step(Batch([example(version)]), BASE_VERSION)
        uri = trainer.save(tmp_path_factory.mktemp("version"), {})
        assert uri is not None
        found.append(Weights(version, uri))
    return found


@pytest.fixture
async def engine(split: SkyRL) -> AsyncIterator[Engine]:
    options: dict[str, Any] = {"url": split.url, "base_model": str(split.model)}
    parts = EngineParts(split.model, EngineConfig(engine="tinker", engine_options=options))
    engine = await asyncio.to_thread(create_engine, parts)
    yield engine
    await engine.close()


class TestSplit(EngineContract):
    tolerance = 1e-3

    @pytest.fixture
    def weights(self, two_versions: list[Weights]) -> list[Weights]:
        return two_versions


async def test_it_tells_the_likeliest_tokens_of_versions_that_differ(
    engine: Engine, two_versions: list[Weights]
) -> None:
    assert engine.capabilities.top_logprobs
    assert engine.capabilities.scores_candidates
    told = []
    for weights in two_versions:
        await engine.load(weights)
        request = ScoreRequest([5, 6, 7, 8], 1, top_k=4, policy_version=weights.version)
        scores = await engine.score(request)
        assert [len(row) for row in scores.top_ids] == [4, 4, 4]
        told.append(scores.logprobs)
    assert told[0] != pytest.approx(told[1], abs=1e-3)
