"""A LoRA step on one GPU: speed, memory, and gradients against transformers and PEFT.

    python bench/gpu_train.py [--gib 32] [--base as-is|int4] [--plain] [--profile] [--only ragged,...]

A random network of Qwen3-4B's shape in bf16, rank 16 on all linear layers. Operations are counted as 4 x
parameters x tokens: what is computed again in the backward pass does not count, nor does attention.
``--gib`` limits everything together: weights, activations, adapters and optimizer. ``--plain`` runs
transformers' layers and PEFT's adapters. A part that fails prints its traceback, and the next one runs.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openclaw_rl.engine.frozen import int4_linear
from openclaw_rl.packing import ATTENTION
from openclaw_rl.testing.examples import make_example
from openclaw_rl.train.fused import unfuse
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.types import Batch, Example, SamplingParams, Token, TurnRecord

#: Tokens of the sixteen samples.
RAGGED = [4001, 3517, 3089, 2801, 2530, 2287, 2011, 1783, 1511, 1289, 1013, 883, 761, 509, 389, 251]
CASES = {"ragged": RAGGED, "1024": [1024] * 16, "32k": [32767]}
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def make_config(layers: int = 36, small: bool = False) -> Any:
    from transformers import Qwen3Config

    sizes = (256, 512, 8, 2, 32, 1000) if small else (2560, 9728, 32, 8, 128, 151936)
    hidden, wide, heads, key_heads, dim, vocab = sizes
    return Qwen3Config(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=wide, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=dim,
        max_position_embeddings=40960, tie_word_embeddings=True, initializer_range=0.02, eos_token_id=2,
    )  # fmt: skip


def make_trainer(config: Any, base: str = "as-is", **options: Any) -> LocalTrainer:
    from transformers import AutoModelForCausalLM

    def draw(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
        torch.manual_seed(0)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)

    folder = Path(tempfile.mkdtemp())
    config.save_pretrained(folder)
    stated = {"train_dtype": "bf16", "lora_rank": 16, "lora_alpha": 32, "learning_rate": 1e-4, **options}
    frozen = {"int4": int4_linear}.get(base)
    trainer = LocalTrainer(folder, LocalTrainerOptions(**stated), frozen, draw)
    for n, (name, parameter) in enumerate(trainer._named):
        if "lora_B" in name:  # a new adapter changes nothing, and its A gets no gradient
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n))
            parameter.data.copy_(noise * 0.002)
    return trainer


def examples(lengths: list[int], vocab: int, columns: int = 1) -> list[Example]:
    rng, items = np.random.default_rng(0), []
    for n, length in enumerate(lengths):
        reply = max(1, min(512, length // 4))
        ids = rng.integers(3, vocab, length + 1)
        tokens = [Token(int(i), -2.0, -2.0, (), (), 0) for i in ids[-reply:]]
        turn = TurnRecord(
            f"t{n}", "s", "ann", "chat", "main", [], None, {}, {}, ids[:-reply].tolist(), tokens,
            SamplingParams(512), 0, "stop", float(n),
        )  # fmt: skip
        others = rng.integers(3, vocab, (reply, columns - 1))
        candidates = np.concatenate([ids[-reply:, None], others], axis=1).astype(np.int32)
        old = np.full((reply, columns), -2.0, np.float32)
        items.append(make_example(turn, 1, candidates, old, rng.normal(0, 0.3, old.shape).astype(np.float32)))
    return items


# --- gradients -------------------------------------------------------------------------------


def gradients(trainer: LocalTrainer, items: list[Example]) -> list[torch.Tensor]:
    before = [p.detach().clone() for p in trainer._parameters]
    trainer.step(Batch(items), 0)
    found = [p.grad.detach().float().clone() for p in trainer._parameters]
    with torch.no_grad():
        for parameter, value in zip(trainer._parameters, before, strict=True):
            parameter.copy_(value)
    return found


def check_gradients() -> None:
    """Fused layers against transformers and PEFT: exact in fp32, by direction in bf16."""
    lengths = [700, 333, 64, 17, 5]
    shared = examples(lengths, 1000, columns=3)
    for item in shared:
        item.prompt_ids[:3] = shared[0].prompt_ids[:3]
    for dtype in ("fp32", "bf16"):
        for name, items in (("ragged", examples(lengths, 1000)), ("shared prefix, 3 candidates", shared)):
            trainer = make_trainer(
                make_config(3, small=True), train_dtype=dtype, micro_batch_tokens=4096, grad_clip=1e9
            )
            if not trainer._fused:
                say(f"gradients, {dtype}, {name}: NOT FUSED")
                continue
            fused = gradients(trainer, items)
            unfuse(trainer._decoder)
            plain = gradients(trainer, items)
            worst = max(float((a - b).norm() / b.norm()) for a, b in zip(fused, plain, strict=True))
            say(f"gradients, {dtype}, {name}: largest relative difference of a matrix {worst:.1e}")


# --- speed -----------------------------------------------------------------------------------


def measure(trainer: LocalTrainer, name: str, num_parameters: int, vocab: int) -> None:
    items = examples(CASES[name], vocab)
    trainer.step(Batch(items[-2:]), 0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    report = trainer.step(Batch(items), 0)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    tokens = sum(CASES[name])
    row = max(CASES[name][0], min(trainer.options.micro_batch_tokens, tokens))
    rate = 4 * num_parameters * tokens / took / 1e12
    say(
        f"{name}: {took:.2f} s, {tokens / took:,.0f} tok/s, {rate:.0f} TFLOP/s; "
        f"peak {gib(torch.cuda.max_memory_allocated())}, reserved {gib(torch.cuda.max_memory_reserved())}; "
        f"forward {report.forward_s:.2f} s, backward {report.backward_s:.2f} s, "
        f"rest {took - report.forward_s - report.backward_s:.2f} s; "
        f"loss {report.loss:.4f}, norm {report.grad_norm:.3g}; of {row} tokens "
        f"{trainer._activations.kept(row)}"
    )


def profile(trainer: LocalTrainer, vocab: int) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    items = examples([4001, 2011, 1289, 883], vocab)
    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as run:
        trainer.step(Batch(items), 0)
        torch.cuda.synchronize()
    table = run.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=70)
    print(table, flush=True)


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def measure_all(options: argparse.Namespace) -> None:
    config = make_config(options.layers, options.small)
    vocab = config.vocab_size
    trainer = make_trainer(
        config, options.base, train_base=options.base, fused=not options.plain, train_gpu_gib=options.gib,
        micro_batch_tokens=options.row,
    )  # fmt: skip
    embedding, layers = config.vocab_size * config.hidden_size, config.num_hidden_layers
    heads = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim * 2
    num_parameters = embedding + layers * config.hidden_size * (heads + 3 * config.intermediate_size)
    sizes = trainer._activations._sizes
    say(
        f"{num_parameters / 1e9:.2f}e9 parameters, weights and adapters "
        f"{gib(torch.cuda.memory_allocated())}, fused {bool(trainer._fused)}, "
        f"rows of {trainer.options.micro_batch_tokens}, bytes per token and layer: "
        f"{sizes.whole:,.0f} whole, {sizes.narrow:,.0f} narrow, {sizes.input} input"
    )
    for name in options.only.split(","):
        attempt(measure, trainer, name, num_parameters, vocab)
    if options.profile:
        attempt(profile, trainer, vocab)


def attempt(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:
        say(f"{function.__name__} FAILED")
        traceback.print_exc()
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=31.5, help="memory for everything")
    parser.add_argument("--base", choices=("as-is", "int4"), default="as-is")
    parser.add_argument("--plain", action="store_true", help="without fused layers")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--row", type=int, default=0, help="tokens of a row; 0: by memory")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--small", action="store_true", help="a small network, to try this script")
    parser.add_argument("--no-check", action="store_true", help="without the comparison of gradients")
    options = parser.parse_args()
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if not options.no_check:
        attempt(check_gradients)
    attempt(measure_all, options)


if __name__ == "__main__":
    main()
