"""Many users, each with a policy: memory, first-token time with cold adapters, throughput.

python bench/users.py [--people 1000] [--active 50] [--in-memory 32] [--requests 2500]

Measured on the bare engine with the default model; throughput with sixteen adapters is compared with one.
Each person's adapter is a file of its own with random weights (10 GB for 1,000 people, deleted at the end).
The requests come from the active people at random; five times other people become active. Everybody "away"
comes in turn, so that each adapter has left the memory when its person is back, and its file has left the
page cache (Linux): the time includes the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.types import GenerateRequest, SamplingParams, Weights
from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE

PROMPT = list(range(100, 160))
#: How often other people become active, and how often memory is read, over all requests.
_CROWDS, _POINTS = 5, 10


def make_people(model: Path, folder: Path, number: int) -> tuple[list[Weights], int]:
    """Their adapters, and the size of one in bytes."""
    first = folder / "1"
    LocalTrainer(model).save(first, {})
    shapes = {name: tensor.shape for name, tensor in load_file(first / ADAPTER_FILE).items()}
    for version in tqdm(range(1, number + 1), desc="adapters", unit="person"):
        own, random_ = folder / str(version), torch.Generator().manual_seed(version)
        own.mkdir(exist_ok=True)
        shutil.copy(first / ADAPTER_CONFIG, own) if version > 1 else None
        tensors = {name: 0.01 * torch.randn(shape, generator=random_) for name, shape in shapes.items()}
        save_file({name: tensor.half() for name, tensor in tensors.items()}, own / ADAPTER_FILE)
    size = sum((first / name).stat().st_size for name in (ADAPTER_FILE, ADAPTER_CONFIG))
    return [Weights.in_folder(n, folder / str(n), f"user:{n}") for n in range(1, number + 1)], size


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def leave_page_cache(each: Weights) -> None:
    assert each.folder is not None
    for file in each.folder.glob("adapter*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


async def first_token_ms(engine: LocalEngine, version: int, seed: int) -> float:
    sampling, began = SamplingParams(1, 1.0, seed=seed), time.perf_counter()
    async for _ in engine.generate(GenerateRequest([*PROMPT, 200 + seed], sampling, policy_version=version)):
        pass
    return 1000 * (time.perf_counter() - began)


async def tokens_per_s(engine: LocalEngine, versions: list[int], length: int = 64) -> float:
    async def one(version: int, seed: int) -> int:
        request = GenerateRequest(
            [*PROMPT, 200 + seed], SamplingParams(length, 1.0, seed=seed), policy_version=version
        )
        return len([token async for token in engine.generate(request)])

    began = time.perf_counter()
    numbers = await asyncio.gather(*(one(version, n) for n, version in enumerate(versions)))
    return sum(numbers) / (time.perf_counter() - began)


async def ask_at_random(
    engine: LocalEngine, people: list[Weights], active: int, requests: int, rng: random.Random
) -> tuple[list[float], list[list[float]]]:
    """First-token times, and the memory in MB after so many requests."""
    times: list[float] = []
    curve = [[0, round(memory_mb())]]
    chosen: list[Weights] = []
    for number in range(1, requests + 1):
        if number % (requests // _CROWDS) == 1:
            chosen = rng.sample(people, min(active, len(people)))
        times.append(await first_token_ms(engine, rng.choice(chosen).version, number))
        if number % (requests // _POINTS) == 0:
            curve.append([number, round(memory_mb())])
    return times, curve


async def measure(model: Path, people: list[Weights], options: argparse.Namespace) -> dict[str, Any]:
    active, in_memory = options.active, options.in_memory
    engine = LocalEngine(model, LocalEngineOptions(max_adapters=in_memory))
    rng, report = random.Random(0), dict[str, Any](memory_mb_none=memory_mb())
    began = time.perf_counter()
    for each in people:
        await engine.load(each)
        await engine.serve_version(each.version, each.scope)
    report |= {"load_all_s": time.perf_counter() - began, "memory_mb_all": memory_mb()}
    await first_token_ms(engine, 1, 0)
    mixed, report["memory_mb_by_requests"] = await ask_at_random(
        engine, people, active, options.requests, rng
    )
    sample = rng.sample(people, min(active, len(people)))
    chosen = [each.version for each in sample]
    away = []
    for n in range(200):
        each = sample[n % len(sample)]
        leave_page_cache(each)
        away.append(await first_token_ms(engine, each.version, n))
    here = [await first_token_ms(engine, chosen[0], n) for n in range(200, 300)]
    for name, values in (("active", mixed), ("away", away), ("one", here)):
        report[f"first_token_ms_{name}_median"] = statistics.median(values)
        report[f"first_token_ms_{name}_p95"] = statistics.quantiles(values, n=20)[-1]
    for name, versions in (("one", chosen[:1] * 16), ("sixteen", chosen[:16])):
        await tokens_per_s(engine, versions, 4)
        report[f"tokens_per_s_{name}"] = await tokens_per_s(engine, versions)
    await engine.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=1000)
    parser.add_argument("--active", type=int, default=50)
    parser.add_argument("--in-memory", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2500)
    options = parser.parse_args()
    model = resolve_model(DEFAULT_MODEL, default_cache_dir())
    with tempfile.TemporaryDirectory() as folder:
        people, size = make_people(model, Path(folder), options.people)
        report = asyncio.run(measure(model, people, options))
    rounded = {name: round(v, 2) if isinstance(v, float) else v for name, v in report.items()}
    print(json.dumps({**vars(options), "adapter_mb": size / 1e6, **rounded}))


if __name__ == "__main__":
    main()
