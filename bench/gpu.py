"""The local engine on one GPU: exactness against transformers, and speed.

    python bench/gpu.py [--model FOLDER] [--shape smollm2|qwen3-4b] [--only exactness,decode,…] [--profile]

Without a model folder, a random network of the given shape is created: exactness and speed do not depend on
its weights. A piece that fails prints its traceback, and the next one runs. Prints figures, at last as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.types import GenerateRequest, SamplingParams, Token, Weights
from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE

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
    "tiny": Qwen3Config(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, head_dim=32, max_position_embeddings=8192,
        tie_word_embeddings=True, initializer_range=0.04, eos_token_id=2,
    ),
}  # fmt: skip
ADAPTERS = 8
#: Without a GPU the script can be tried, with the shape "tiny".
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WHOLE: dict[str, float] = {}
DEFAULT = {"temperature": 0.7, "top_p": 0.9}
PIECES = ("exactness", "decode", "default_sampling", "adapters", "prompts", "swaps")


def make_network(model: Path | None, shape: str, folder: Path, dtype: torch.dtype) -> tuple[Any, Path]:
    if model is not None:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, device_map=DEVICE), model
    torch.manual_seed(0)
    with torch.device(DEVICE):
        network = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype)
    network.save_pretrained(folder)
    return network, folder


def make_adapter(network: Any, folder: Path, seed: int, rank: int = 16) -> Path:
    """A PEFT folder with random weights on all linear layers."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and name.startswith("model."):
            for part, shape, std in (
                ("A", (rank, module.in_features), 0.02),
                ("B", (module.out_features, rank), 0.01),
            ):
                values = rng.standard_normal(shape, np.float32) * std
                tensors[f"base_model.model.{name}.lora_{part}.weight"] = values.astype(np.float16)
    save_file(tensors, folder / ADAPTER_FILE)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
    return folder


class Bench:
    """One engine, the network it runs as transformers computes it, and adapters 1 to 8."""

    def __init__(self, engine: LocalEngine, network: Any, folders: list[Path]) -> None:
        self.engine, self.network, self.folders = engine, network, folders
        self.vocab: int = network.config.vocab_size

    def prompt(self, length: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(10, self.vocab) for _ in range(length)]

    async def generate(
        self, ids: list[int], count: int, seed: int = 0, version: int = 0, **params: float
    ) -> tuple[list[Token], list[float]]:
        tokens, times = [], []
        sampling = SamplingParams(count, seed=seed, **params)  # type: ignore[arg-type]
        async for token in self.engine.generate(GenerateRequest(ids, sampling, policy_version=version)):
            tokens.append(token)
            times.append(time.perf_counter())
        return tokens, times

    async def rate(
        self, streams: int, length: int, count: int, versions: list[int], **params: float
    ) -> float:
        """Tokens a second from when the last stream has its first token until the first one ends."""
        prompts = [self.prompt(length, seed) for seed in range(streams)]

        async def all_of(tokens: int) -> list[tuple[list[Token], list[float]]]:
            return await asyncio.gather(
                *(
                    self.generate(ids, tokens, row, versions[row * len(versions) // streams], **params)
                    for row, ids in enumerate(prompts)
                )
            )

        await all_of(20)
        results = await all_of(count)
        start, end = max(times[0] for _, times in results), min(times[-1] for _, times in results)
        return sum(start < at <= end for _, times in results for at in times) / (end - start)


async def exactness(bench: Bench) -> dict[str, float]:
    """Log-probs against transformers: mixed lengths in a batch, a prefix-cache hit, then 80 rows at once."""
    prompts = [bench.prompt(n, n) for n in (5, 40, 300, 700, 1300, 64)]
    results = await asyncio.gather(*(bench.generate(ids, 24, seed) for seed, ids in enumerate(prompts)))
    cases = [(ids, tokens) for ids, (tokens, _) in zip(prompts, results, strict=True)]
    longer = [*cases[3][0], *(t.id for t in cases[3][1]), *prompts[0]]
    cases.append((longer, (await bench.generate(longer, 24))[0]))
    many = [bench.prompt(20 + n, 100 + n) for n in range(80)]
    results = await asyncio.gather(*(bench.generate(ids, 12, seed) for seed, ids in enumerate(many)))
    crowd = [(ids, tokens) for ids, (tokens, _) in zip(many, results, strict=True)][::8]
    figures = {}
    for name, some in (("alone", cases), ("of_80", crowd)):
        errors = [error for case in some for error in _errors(bench.network, *case)]
        figures |= {f"mean_error_{name}": sum(errors) / len(errors), f"max_error_{name}": max(errors)}
    return figures


def _errors(network: Any, ids: list[int], tokens: list[Token]) -> list[float]:
    full = torch.tensor([[*ids, *(token.id for token in tokens)]], device=DEVICE)
    with torch.inference_mode():
        logprobs = torch.log_softmax(network(full).logits[0].float(), -1)
    return [abs(float(logprobs[len(ids) + i - 1, t.id]) - t.logprob) for i, t in enumerate(tokens)]


async def decode(bench: Bench) -> dict[str, float]:
    return {
        "1 stream": await bench.rate(1, 64, 300, [0]),
        "8 streams": await bench.rate(8, 64, 200, [0]),
        "64 streams, prompts of 512": await bench.rate(64, 512, 150, [0]),
    }


async def default_sampling(bench: Bench) -> dict[str, float]:
    return {
        "1 stream, T 0.7, top-p 0.9": await bench.rate(1, 64, 300, [0], **DEFAULT),
        "64 streams, T 0.7, top-p 0.9": await bench.rate(64, 512, 150, [0], **DEFAULT),
    }


async def adapters(bench: Bench) -> dict[str, float]:
    return {
        "1 stream, adapter": await bench.rate(1, 64, 300, [1]),
        "64 streams, 1 adapter": await bench.rate(64, 512, 150, [1]),
        "64 streams, 8 adapters": await bench.rate(64, 512, 150, list(range(1, ADAPTERS + 1))),
    }


async def prompts(bench: Bench) -> dict[str, float]:
    """Milliseconds to the first token, of three tries each."""
    first, turn = [], []
    for number in range(4):
        ids = bench.prompt(4000, 1000 + number)
        for times, more in ((first, []), (turn, bench.prompt(50, number))):
            started = time.perf_counter()
            _, at = await bench.generate(ids + more, 1)
            times.append(1e3 * (at[0] - started))
    return {
        "first token of 4000, ms": float(np.median(first[1:])),
        "next turn of 50 after 4000, ms": float(np.median(turn[1:])),
        "first token of 4000, first try, ms": first[0],
    }


class Traffic:
    """One stream without end; the gaps between its tokens are kept."""

    def __init__(self, bench: Bench) -> None:
        self.gaps: list[float] = []
        self.errors = 0
        self._bench, self._done = bench, asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._done.is_set():
            number += 1
            try:
                request = GenerateRequest(self._bench.prompt(64, number), SamplingParams(400, seed=number))
                last = 0.0
                async for _ in self._bench.engine.generate(request):
                    now = time.perf_counter()
                    if last:
                        self.gaps.append(now - last)
                    last = now
            except Exception:
                self.errors += 1

    async def end(self) -> None:
        self._done.set()
        await self._task

    def take(self) -> dict[str, float]:
        """What the gaps were, in milliseconds, since the last call."""
        gaps, self.gaps[:] = sorted(self.gaps), []
        if not gaps:
            return {}
        at = {"median": 0.5, "p95": 0.95, "p99": 0.99, "largest": 1.0}
        return {name: 1e3 * gaps[min(len(gaps) - 1, int(share * len(gaps)))] for name, share in at.items()}


async def swaps(bench: Bench, count: int = 1000, seconds: float = 60) -> dict[str, float]:
    """Load and serve new versions while one stream decodes and others start; the same without swaps first."""
    traffic, result = Traffic(bench), dict[str, float]()
    version = 0

    async def ask(number: int) -> None:
        await bench.generate(bench.prompt(30, number), 4, version=version or 1)

    async def swap(number: int) -> None:
        nonlocal version
        before, version = version, 100 + number
        await bench.engine.load(Weights.in_folder(version, bench.folders[number % ADAPTERS]))
        result["load, ms"] = max(result.get("load, ms", 0.0), 1e3 * (time.perf_counter() - began))
        await bench.engine.serve_version(version)
        await ask(number)
        if before:
            await bench.engine.unload(before)

    await ask(-1)
    await asyncio.sleep(1.5)
    traffic.take()
    for kind, act, most_s in (("without", ask, min(8.0, seconds)), ("with", swap, seconds)):
        started, number = time.perf_counter(), 0
        while number < count and time.perf_counter() - started < most_s:
            began = time.perf_counter()
            try:
                await act(number)
            except Exception:
                traffic.errors += 1
                traceback.print_exc()
            number += 1
            if kind == "with" and number % 100 == 0:
                print(json.dumps({"swaps": number, "errors": traffic.errors}), flush=True)
        taken = time.perf_counter() - started
        result |= {f"{kind}: gap, {name}, ms": value for name, value in traffic.take().items()}
        result |= {f"{kind}: number": number, f"{kind}: ms each": 1e3 * taken / max(1, number)}
    await traffic.end()
    return {**result, "errors": traffic.errors}


async def run(bench: Bench, only: list[str], swap_count: int, swap_seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = {}
    pieces: dict[str, Callable[[Bench], Awaitable[dict[str, float]]]] = {
        "exactness": exactness, "decode": decode, "default_sampling": default_sampling,
        "adapters": adapters, "prompts": prompts, 
        "swaps": lambda bench: swaps(bench, swap_count, swap_seconds),
    }  # fmt: skip
    for version, folder in enumerate(bench.folders, 1):
        await bench.engine.load(Weights.in_folder(version, folder))
    for name in only:
        started = time.perf_counter()
        try:
            result[name] = await pieces[name](bench)
        except Exception:
            traceback.print_exc()
            result[name] = {"failed": 1.0}
        print(f"{name} ({time.perf_counter() - started:.1f} s)", flush=True)
        for label, value in result[name].items():
            print(f"  {label:40s} {value:10.4g}", flush=True)
        print(json.dumps({name: result[name]}), flush=True)
    await bench.engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--only", default=",".join(PIECES), help="of: " + ", ".join(PIECES))
    parser.add_argument("--profile", action="store_true", help="kernels and Python parts of a step first")
    parser.add_argument("--no-graphs", action="store_true", help="launch kernels one by one")
    parser.add_argument("--swaps", type=int, default=1000, help="at most so many")
    parser.add_argument("--swap-seconds", type=float, default=60, help="at most so long")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = torch.float32 if options.dtype == "fp32" else torch.bfloat16
    with tempfile.TemporaryDirectory() as name:
        started = time.perf_counter()
        folder = Path(name)
        network, model = make_network(options.model, options.shape, folder, dtype)
        folders = [make_adapter(network, folder / f"adapter-{seed}", seed) for seed in range(ADAPTERS)]
        settings = LocalEngineOptions(
            device=DEVICE, dtype=options.dtype, max_running=96, graphs=not options.no_graphs
        )
        engine = LocalEngine(model, settings)
        print(f"started in {time.perf_counter() - started:.1f} s", flush=True)
        if options.profile:
            from gpu_profile import profile_steps  # needs triton

            try:
                profile_steps(engine)
            except Exception:
                traceback.print_exc()
            gc.collect()
        result = asyncio.run(run(Bench(engine, network, folders), only, options.swaps, options.swap_seconds))
    shape = options.model.name if options.model else options.shape
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
    about = {"gpu": gpu, "torch": torch.__version__, "shape": shape}
    print(json.dumps({**about, "dtype": options.dtype, **result}))


if __name__ == "__main__":
    main()
