"""Where a decoding step of the local engine's time goes on a GPU: kernels, and the Python around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from openclaw_rl.engine.gpu_sampler import GpuSampler
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.lora import PROJECTIONS, Adapter, LowRank
from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.types import SamplingParams

_STEPS = 5


def profile_steps(engine: LocalEngine) -> None:
    """Run while the engine is idle."""
    decoder: Any = engine._decoder
    several: list[Adapter | None] = [_adapter(decoder, seed) for seed in range(8)]
    for rows, length, adapters, label in (
        (1, 200, [None], "base"),
        (1, 200, several[:1], "one adapter"),
        (64, 600, [None], "base"),
        (64, 600, several, "eight adapters"),
    ):
        caches = [_cache(decoder, length) for _ in range(rows)]
        _show(f"step of {rows} rows of {length}, {label}", _Step(decoder, caches, length, adapters))
        if adapters == [None]:
            for params in ({}, {"temperature": 0.7, "top_p": 0.9}):
                _show(
                    f"the same, sampled with {params or 'nothing'}",
                    _Step(decoder, caches, length, adapters, params),
                )
    cache = _cache(decoder, 0)
    _show("prompt of 4000", lambda: _prompt(decoder, cache, 0, 4000))
    _show("prompt of 50 after 4000", lambda: _prompt(decoder, cache, 4000, 50))


def _cache(decoder: Decoder, length: int) -> SequenceCache:
    cache = decoder.new_cache()
    cache.reserve(length + 64)
    cache.length = length
    return cache


def _adapter(decoder: Decoder, seed: int, rank: int = 16) -> Adapter:
    made = Adapter()
    like = decoder.embedding_VH
    for layer in range(decoder.shape.num_layers):
        for name, modules in PROJECTIONS.items():
            ranks, width = rank * len(modules), sum(decoder.widths[name])
            a = torch.randn(ranks, decoder.input_widths[name], device=like.device).to(like) * 0.02
            b = torch.randn(ranks, width, device=like.device).to(like) * 0.02
            made[layer, name] = LowRank(a, b, torch.tensor([[0, ranks, 0, width]]))
    return made


class _Step:
    """One decoding step, and the sampling of its tokens where parameters are given."""

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[SequenceCache],
        length: int,
        adapters: Sequence[Adapter | None],
        params: dict[str, float] | None = None,
    ) -> None:
        self._decoder, self._caches, self._length, self._adapters = decoder, caches, length, adapters
        self._samplers = None
        if params is not None:
            rows = range(len(caches))
            self._samplers = [Sampler(SamplingParams(1, seed=row, **params)) for row in rows]  # type: ignore[arg-type]
            self._on_gpu = GpuSampler(decoder.device)

    def __call__(self) -> None:
        count = len(self._caches)
        for cache in self._caches:
            cache.length = self._length
        chunks = [
            Chunk([7 + row], cache, self._adapters[row * len(self._adapters) // count])
            for row, cache in enumerate(self._caches)
        ]
        logits_RV = self._decoder.forward(chunks)
        if self._samplers:
            self._on_gpu.start(logits_RV, self._samplers, 8)
            self._on_gpu.finish()


def _prompt(decoder: Decoder, cache: SequenceCache, start: int, count: int) -> None:
    cache.truncate(start)
    decoder.forward([Chunk(list(range(10, 10 + count)), cache, None)])


def _show(label: str, run: Callable[[], None], top: int = 14) -> None:
    for _ in range(12):
        run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(20):
        run()
    launched = (time.perf_counter() - started) / 20
    torch.cuda.synchronize()
    wall = (time.perf_counter() - started) / 20
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(_STEPS):
            run()
        torch.cuda.synchronize()
    events: list[Any] = [e for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    total = sum(e.self_device_time_total for e in events) / _STEPS
    print(
        f"{label}: {1e3 * wall:.3f} ms, of which Python {1e3 * launched:.3f};"
        f" kernels {total / 1e3:.3f} ms, {sum(e.count for e in events) / _STEPS:.0f} of them"
    )
    for e in sorted(events, key=lambda e: -e.self_device_time_total)[:top]:
        spent, each = e.self_device_time_total / _STEPS, e.self_device_time_total / max(1, e.count)
        print(f"  {spent:9.1f} us {e.count / _STEPS:6.1f} x {each:8.2f} us  {e.key[:90]}")
