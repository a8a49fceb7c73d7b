"""The local engine on one GPU: exactness against transformers, and speed.

    python bench/gpu.py [--model FOLDER] [--shape smollm2|qwen3-4b]

Without a model folder, a random network of the given shape is created: exactness and speed do not depend on
its weights. Decoding with CUDA graphs and with kernels launched one by one are both measured, with the base
and with an adapter of rank 16. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.types import GenerateRequest, SamplingParams, Token, Weights

SHAPES: dict[str, Any] = {
    "smollm2": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
        tie_word_embeddings=True, initializer_range=0.08, eos_token_id=2,
    ),
    "qwen3-4b": Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=8192,
        tie_word_embeddings=True, initializer_range=0.04, eos_token_id=2,
    ),
}  # fmt: skip


def make_model(shape: str, folder: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype)
    network.save_pretrained(folder)


def make_adapter(network: Any, folder: Path, rank: int = 16) -> None:
    """A PEFT folder with random weights on all linear layers."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(network, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    model.save_pretrained(folder)
    model.unload()


async def generate(
    engine: LocalEngine, ids: list[int], count: int, seed: int = 0, version: int = 0
) -> tuple[list[Token], list[float]]:
    tokens, times = [], []
    request = GenerateRequest(ids, SamplingParams(count, seed=seed), policy_version=version)
    async for token in engine.generate(request):
        tokens.append(token)
        times.append(time.perf_counter())
    return tokens, times


async def check_exactness(engine: LocalEngine, network: Any, vocab: int) -> dict[str, float]:
    """Mean and largest log-prob difference, for mixed lengths in one batch and then a prefix-cache hit."""
    rng = random.Random(0)
    prompts = [[rng.randrange(10, vocab) for _ in range(n)] for n in (5, 40, 300, 700, 1300, 64)]
    results = await asyncio.gather(*(generate(engine, ids, 24, seed) for seed, ids in enumerate(prompts)))
    cases = [(ids, tokens) for ids, (tokens, _) in zip(prompts, results, strict=True)]
    longer = [*cases[3][0], *(t.id for t in cases[3][1]), *prompts[0]]
    cases.append((longer, (await generate(engine, longer, 24))[0]))
    errors = []
    for ids, tokens in cases:
        full = torch.tensor([[*ids, *(t.id for t in tokens)]], device="cuda")
        with torch.inference_mode():
            logprobs = torch.log_softmax(network(full).logits[0].float(), -1)
        errors += [abs(float(logprobs[len(ids) + i - 1, t.id]) - t.logprob) for i, t in enumerate(tokens)]
    return {"mean_error": sum(errors) / len(errors), "max_error": max(errors)}


async def measure_speed(engine: LocalEngine, vocab: int, count: int) -> dict[str, float]:
    """Speed with ``count`` tokens per stream."""
    rng = random.Random(1)
    figures: dict[str, float] = {}
    for version, streams in ((0, 1), (0, 8), (0, 64), (1, 1), (1, 64)):
        prompts = [[rng.randrange(10, vocab) for _ in range(64)] for _ in range(streams)]
        await asyncio.gather(*(generate(engine, ids, 4, version=version) for ids in prompts))
        results = await asyncio.gather(*(generate(engine, ids, count, version=version) for ids in prompts))
        start, end = max(times[0] for _, times in results), max(times[-1] for _, times in results)
        inside = sum(start < at <= end for _, times in results for at in times)
        figures[f"decode_{streams}{'_adapter' if version else ''}"] = inside / (end - start)
    long = [rng.randrange(10, vocab) for _ in range(4000)]
    start = time.perf_counter()
    _, times = await generate(engine, long, 1)
    figures["prefill_4000"] = 4000 / (times[0] - start)
    return figures


async def run(model: Path, dtype: str, adapter: Path) -> dict[str, Any]:
    network = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16, device_map="cuda"
    )
    vocab = network.config.vocab_size
    make_adapter(network, adapter)
    result: dict[str, Any] = {"dtype": dtype}
    for name, graphs, count in (("one by one", False, 24), ("recorded", True, 200)):
        engine = LocalEngine(
            model, LocalEngineOptions(device="cuda", dtype=dtype, max_running=64, graphs=graphs)
        )
        await engine.load(Weights.in_folder(1, adapter))
        result[name] = {
            **await check_exactness(engine, network, vocab),
            **await measure_speed(engine, vocab, count),
        }
        await engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            dtype = torch.float32 if options.dtype == "fp32" else torch.bfloat16
            make_model(options.shape, Path(folder), dtype)
        result = asyncio.run(run(options.model or Path(folder), options.dtype, Path(folder, "adapter")))
    shape = options.model.name if options.model else options.shape
    print(
        json.dumps(
            {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": shape, **result}
        )
    )


if __name__ == "__main__":
    main()
