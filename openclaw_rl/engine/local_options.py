"""Settings of the embedded engine, apart from its code: they are read and checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from openclaw_rl.settings import EngineConfig


@dataclass(frozen=True)
class LocalEngineOptions(EngineConfig):
    """The engine settings, plus those of this engine only: ``[engine.local]``."""

    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of activations and the KV cache: fp32, bf16, or auto (fp32 on a CPU)."""
    kernel: str = "auto"
    """Matrix kernels of the frozen base: native, native@avx2, float, …, or auto (measured at start)."""
    num_threads: Annotated[int, Ge(0)] = 0
    """CPU threads of the engine; 0: torch's default."""
    chunk_tokens: Annotated[int, Ge(1)] = 256
    """Maximum number of prompt tokens processed per step while other replies are being generated."""
    idle_chunk_tokens: Annotated[int, Ge(1)] = 512
    """Maximum number of prompt tokens processed per step while no other reply is being generated."""
    max_step_s: Annotated[float, Gt(0)] = 0.2
    """If a step takes longer, prompts are processed in smaller chunks, so that no stream stalls."""
    cache_tokens: Annotated[int, Ge(0)] = 0
    """Size of the KV cache in tokens; 0: by the machine's memory."""
    gpu_memory: Annotated[float, Gt(0), Le(1)] = 0.9
    """The part of a GPU's memory for all: cache and training get half of what the weights leave of it."""
    max_adapters: Annotated[int, Ge(1)] = 32
    """Adapters kept in memory; the least recently used are evicted, and read again when needed."""
    graphs: bool = True
    """Whether decoding on a GPU uses CUDA graphs; without them kernels are launched one by one."""
