"""The real default model behind the engine, and a plain transformers forward to hold it to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.types import GenerateRequest, Priority, SamplingParams, Token

#: ``make test-kernels`` sets each in turn.
KERNEL = os.environ.get("OPENCLAW_RL_KERNEL", "float")
#: Largest |log-prob - transformers' fp32|; for the others, test_kernels.py states the bounds more finely.
TOLERANCE = 1e-3 if KERNEL == "float" else 0.5
#: Small chunks, so that ordinary test prompts are prefilled in several pieces.
OPTIONS = LocalEngineOptions(device="cpu", dtype="fp32", kernel=KERNEL, chunk_tokens=24, idle_chunk_tokens=40)


@pytest.fixture
async def engine(model_path: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model_path, OPTIONS)
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_adapters(model_path, tmp_path_factory.mktemp("adapters"))


def write_adapters(model_path: Path, folder: Path) -> dict[int, Path]:
    """Two PEFT LoRA folders with non-zero weights, on all and on some linear layers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    folders = {}
    for version, targets in ((1, every), (2, ["q_proj", "v_proj", "down_proj"])):
        torch.manual_seed(version)
        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        folders[version] = folder / str(version)
        model.save_pretrained(folders[version])
    return folders


Reference = Callable[[Sequence[int], int], torch.Tensor]


@pytest.fixture(scope="session")
def reference(model_path: Path, adapters: dict[int, Path]) -> Reference:
    """``reference(ids, version)``: raw log-probs [T, V] of one plain forward pass."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapters[1], adapter_name="1")
    model.load_adapter(adapters[2], adapter_name="2")

    @torch.inference_mode()
    def run(ids: Sequence[int], version: int) -> torch.Tensor:
        if version == 0:
            with model.disable_adapter():
                logits = model(torch.tensor([list(ids)])).logits[0]
        else:
            model.set_adapter(str(version))
            logits = model(torch.tensor([list(ids)])).logits[0]
        return torch.log_softmax(logits.float(), -1)

    return run


@pytest.fixture(scope="session")
def tokenizer(model_path: Path):  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path)


async def run_generation(
    engine: LocalEngine,
    prompt: Sequence[int],
    *,
    max_tokens: int = 12,
    version: int | None = 0,
    priority: Priority = Priority.LIVE,
    stop_ids: frozenset[int] = frozenset(),
    **sampling: float,
) -> list[Token]:
    request = GenerateRequest(
        list(prompt),
        SamplingParams(max_tokens, **sampling),  # type: ignore[arg-type]
        policy_version=version,
        priority=priority,
        stop_ids=stop_ids,
    )
    return [token async for token in engine.generate(request)]
