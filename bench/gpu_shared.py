"""Serving and training on one GPU with the base in memory once: an engine, and a trainer in another process.

    python bench/gpu_shared.py [--layers 36]

A random network of Qwen3-4B's shape. The engine answers, the other process opens its weights (CUDA IPC) and
trains on the list of ``gpu_train.py``, and the engine answers the same request again: the same tokens, since
nothing wrote to the weights. Without sharing, the trainer reads its own copy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_train import RAGGED, examples, gib, make_config, say

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.sharing import offer_from_json, offer_to_json
from openclaw_rl.train.beside import Beside
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.types import Batch, GenerateRequest, SamplingParams


def used() -> str:
    free, total = torch.cuda.mem_get_info()
    return gib(total - free)


async def answer(engine: LocalEngine) -> list[int]:
    request = GenerateRequest([5, 6, 7, 8], SamplingParams(64, seed=1))
    return [token.id async for token in engine.generate(request)]


async def serve(options: argparse.Namespace) -> None:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        with torch.device("cuda"):
            network = AutoModelForCausalLM.from_config(make_config(options.layers), dtype=torch.bfloat16)
        network.save_pretrained(folder)
        del network
        torch.cuda.empty_cache()
        engine = LocalEngine(Path(folder), LocalEngineOptions(device="cuda", cache_tokens=16384))
        before = await answer(engine)
        say(f"engine: the card holds {used()}")
        offer = engine.on_gpu()
        assert offer is not None
        handles = json.dumps(offer_to_json(offer))
        say(f"{len(offer.weights)} tensors in {len(handles) / 1e6:.2f} MB of handles")
        for shares in (True, False):
            child = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--child", folder, stdin=subprocess.PIPE,
                env={**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"},  # as the learn process
            )  # fmt: skip
            await child.communicate(handles.encode() if shares else b"")
            same = await answer(engine) == before
            say(
                f"shared {shares}: trainer ended with {child.returncode}; the engine answers the same: {same}"
            )
        await engine.close()


def train(folder: Path) -> None:
    stated: str = sys.stdin.read()
    beside = Beside((lambda: offer_from_json(json.loads(stated))) if stated else None)
    options = LocalTrainerOptions(train_device="cuda", lora_rank=16, train_gpu_gib=24 if stated else 32)
    trainer = LocalTrainer(folder, options, beside=beside)
    say(f"  trainer: own memory {gib(torch.cuda.memory_allocated())}, the card holds {used()}")
    items: list[Any] = examples(RAGGED, trainer._model.config.vocab_size)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        report = trainer.step(Batch(items), 0)
        say(
            f"  step {report.total_s:.2f} s, {report.num_tokens / report.total_s:,.0f} tok/s, finite "
            f"{report.finite}, own peak {gib(torch.cuda.max_memory_allocated())}, the card holds {used()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.child)
    else:
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
