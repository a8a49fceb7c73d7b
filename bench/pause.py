"""How long does a weight swap pause a running stream? Loading and switching, on the bare engine.

python bench/pause.py [--swaps 5]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.types import GenerateRequest, SamplingParams, Weights


def make_adapters(model: Path, folder: Path, number: int) -> list[Path]:
    LocalTrainer(model).save(folder / "1", {})
    for version in range(2, number + 1):
        shutil.copytree(folder / "1", folder / str(version))
    return [folder / str(version) for version in range(1, number + 1)]


async def measure(model: Path, adapters: list[Path]) -> None:
    engine = LocalEngine(model)
    stamps: list[float] = []

    async def stream() -> None:
        request = GenerateRequest(list(range(100, 160)), SamplingParams(3000, 1.0, seed=1), policy_version=0)
        async for _ in engine.generate(request):
            stamps.append(time.monotonic())

    streaming = asyncio.create_task(stream())
    spans = []
    for version, path in enumerate(adapters, 1):
        await asyncio.sleep(1.5)
        started = time.monotonic()
        await engine.load(Weights.in_folder(version, path))
        await engine.serve_version(version)
        spans.append((started, time.monotonic() + 0.1))
    await asyncio.sleep(1)
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    await engine.close()
    gaps = [(end, end - start) for start, end in pairwise(stamps)]
    median = statistics.median(gap for _, gap in gaps)
    print(f"median gap {1000 * median:.1f} ms")
    for start, end in spans:
        longest = max(gap for at, gap in gaps if start <= at <= end)
        print(
            f"longest gap at the swap {1000 * longest:.1f} ms: a pause of {1000 * (longest - median):.1f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--swaps", type=int, default=5)
    options = parser.parse_args()
    model = resolve_model(DEFAULT_MODEL, default_cache_dir())
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(model, make_adapters(model, Path(folder), options.swaps)))


if __name__ == "__main__":
    main()
