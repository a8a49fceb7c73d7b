"""Runs on a GPU, once at start, what the first requests would otherwise wait for: recording and compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw_rl.engine.lora import Adapter
from openclaw_rl.engine.model import Chunk, Network
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.types import SamplingParams

if TYPE_CHECKING:
    from openclaw_rl.engine.gpu_sampler import GpuSampler

_ROWS = (1, 2, 4, 8, 32)
_USUAL_TOP = 8


def warm_up(decoder: Network, gpu_sampler: GpuSampler | None) -> None:
    for rows in _ROWS:
        for adapter in (None, Adapter()):
            chunks = [Chunk([0], decoder.new_cache(), adapter) for _ in range(rows)]
            logits_RV = decoder.forward(chunks)
    decoder.forward([Chunk([0, 0], decoder.new_cache(), None)])
    if gpu_sampler:
        samplers = [Sampler(SamplingParams(1, top_p=0.9)) for _ in range(_ROWS[-1])]
        gpu_sampler.start(logits_RV, samplers, _USUAL_TOP)
        gpu_sampler.finish()
