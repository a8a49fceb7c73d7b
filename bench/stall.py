"""Eight clients stream while a long prompt arrives: how long does any of them wait for a token?

python bench/stall.py [--prompt-tokens 4000] [--runs 3]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import pairwise

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.types import GenerateRequest, SamplingParams


async def run(prompt_tokens: int, runs: int) -> None:
    engine = LocalEngine(resolve_model(DEFAULT_MODEL, default_cache_dir()))
    print("| run | longest gap before (s) | … while the prompt is read (s) | its first token (s) |")
    print("|---|---|---|---|")
    for number in range(runs):
        arrivals: list[list[float]] = [[] for _ in range(8)]
        enough = asyncio.Event()

        async def stream(index: int, arrivals: list[list[float]], enough: asyncio.Event) -> None:
            prompt = list(range(100 + index, 140 + index))
            request = GenerateRequest(prompt, SamplingParams(4000, seed=index))
            async for _ in engine.generate(request):
                arrivals[index].append(time.perf_counter())
                if enough.is_set():
                    return

        streams = [asyncio.create_task(stream(i, arrivals, enough)) for i in range(8)]
        while not all(len(times) >= 40 for times in arrivals):
            await asyncio.sleep(0.01)
        arrived = time.perf_counter()
        prompt = [(7 * i + 13 * number) % 40000 + 1000 for i in range(prompt_tokens)]
        async for _ in engine.generate(GenerateRequest(prompt, SamplingParams(1))):
            answered = time.perf_counter()
        enough.set()
        await asyncio.gather(*streams)
        before = max(gap(times[8:], 0, arrived) for times in arrivals)
        during = max(gap(times, arrived, answered) for times in arrivals)
        print(f"| {number + 1} | {before:.3f} | {during:.3f} | {answered - arrived:.2f} |", flush=True)
    print(f"\nkernel {engine.kernel}, {prompt_tokens}-token prompt")
    await engine.close()


def gap(times: list[float], start: float, end: float) -> float:
    """The longest gap between two tokens of a stream where the second arrived in the interval."""
    return max((b - a for a, b in pairwise(times) if start < b <= end), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(run(options.prompt_tokens, options.runs))


if __name__ == "__main__":
    main()
