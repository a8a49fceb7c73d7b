"""Many users, each with a policy: memory, first-token time with cold adapters, throughput.

python bench/users.py [--people 1000] [--active 50] [--in-memory 32]

Measured on the bare engine with the default model; throughput with sixteen adapters is compared with one.
Everybody "away" comes in turn, so that each adapter has left the memory when its person is back, and its file
has left the page cache (Linux): the time includes the disk. All adapters are hard links to one file, to save
disk space.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.types import GenerateRequest, SamplingParams, Weights

PROMPT = list(range(100, 160))


def make_people(model: Path, folder: Path, number: int) -> tuple[list[Weights], int]:
    """Their adapters, and the size of one in bytes."""
    first = folder / "1"
    LocalTrainer(model).save(first, {})
    files = [file for file in first.iterdir() if file.name != "trainer.pt"]
    for version in range(2, number + 1):
        (folder / str(version)).mkdir()
        for file in files:
            os.link(file, folder / str(version) / file.name)
    size = sum(file.stat().st_size for file in files)
    return [Weights.in_folder(n, folder / str(n), f"user:{n}") for n in range(1, number + 1)], size


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def leave_page_cache(each: Weights) -> None:
    assert each.folder is not None
    for file in each.folder.iterdir():
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


async def measure(model: Path, people: list[Weights], active: int, in_memory: int) -> dict[str, float]:
    engine = LocalEngine(model, LocalEngineOptions(max_adapters=in_memory))
    rng, report = random.Random(0), {"memory_mb_none": memory_mb()}
    began = time.perf_counter()
    for each in people:
        await engine.load(each)
        await engine.serve_version(each.version, each.scope)
    report |= {"load_all_s": time.perf_counter() - began, "memory_mb_all": memory_mb()}
    await first_token_ms(engine, 1, 0)
    sample = rng.sample(people, min(active, len(people)))
    chosen = [each.version for each in sample]
    mixed = [await first_token_ms(engine, rng.choice(chosen), n) for n in range(1, 201)]
    report["memory_mb_after"] = memory_mb()
    away = []
    for n in range(301, 501):
        each = sample[n % len(sample)]
        leave_page_cache(each)
        away.append(await first_token_ms(engine, each.version, n))
    here = [await first_token_ms(engine, chosen[0], n) for n in range(201, 301)]
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
    options = parser.parse_args()
    model = resolve_model(DEFAULT_MODEL, default_cache_dir())
    with tempfile.TemporaryDirectory() as folder:
        people, size = make_people(model, Path(folder), options.people)
        report = asyncio.run(measure(model, people, options.active, options.in_memory))
    print(
        json.dumps({**vars(options), "adapter_mb": size / 1e6, **{k: round(v, 2) for k, v in report.items()}})
    )


if __name__ == "__main__":
    main()
