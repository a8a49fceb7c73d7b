"""Whether a model fits this machine, in which precision, and its maximum speed.

Computed from the shapes of its weights and the measured memory bandwidth; at most one layer of the model is
read. A token takes at least as long as reading the weights that it needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl.sizes import Size, defaults_for, size_of

if TYPE_CHECKING:
    from openclaw_rl.engine.weights import Checkpoint

_GB = 1e9
#: Share of memory; the rest is for the system and for what is not computed here.
_USABLE = 0.9
#: Assumed size of the KV cache, in tokens.
_CACHE_TOKENS = 8192
_COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Machine:
    device: str
    memory: float
    """Bytes of the GPU or of the machine."""
    bandwidth: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that each use of a model needs, and bytes read per token."""

    precision: str
    serving: float
    adapters: float
    full: float
    read_per_token: float

    @property
    def learning(self) -> float:
        return self.serving + self.adapters


def measure_machine(device: str) -> Machine:
    import torch

    source = torch.ones(_COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(_ROUNDS + 1):  # the first round also allocates the pages
        started = time.perf_counter()
        target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - started)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
    return Machine(device, float(memory), 2 * _COPY_BYTES[device] / best)


def packed_bytes(checkpoint: Checkpoint, device: str) -> float:
    """Bytes per weight as packed for our CPU kernels; 0 if they are not used."""
    from openclaw_rl.engine.build import Unavailable
    from openclaw_rl.engine.frozen import FrozenLinear, native_linear
    from openclaw_rl.engine.native import load_native
    from openclaw_rl.engine.weights import load_tensors

    if device != "cpu" or not checkpoint.is_fast:
        return 0.0
    try:
        load_native()
    except Unavailable:
        return 0.0
    import torch

    weight = load_tensors(checkpoint.path)["model.layers.0.self_attn.o_proj.weight"].float()
    layer = torch.nn.utils.skip_init(torch.nn.Linear, *reversed(weight.shape), bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    # 4-bit weights with a scale and an offset per 32 of them, or bf16 if the weights are not on such a grid.
    return 20 / 32 if isinstance(native_linear(layer), FrozenLinear) else 2.0


def fit(checkpoint: Checkpoint, size: Size, device: str, packed: float = 0.0) -> Fit:
    """Memory use in the default precision: fp32 on a CPU, bf16 on a GPU."""
    shape, item = checkpoint.shape, 4 if device == "cpu" else 2
    weights = size.num_parameters * item
    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * item * _CACHE_TOKENS
    # On a CPU both processes map the same file, if it has the precision that they use.
    shared = device == "cpu" and size.largest_dtype == "F32"
    tokens = defaults_for(size.num_parameters).micro_batch_tokens
    # Vectors of the hidden size per token and layer, measured on the default model: 19 with adapters, 20 with
    # all weights. Plus the logits of 256 positions.
    activations = 20 * shape.hidden * shape.num_layers * tokens * item + 2 * 256 * shape.vocab * 4
    # Trained weights are in fp32, with two moments and a gradient.
    return Fit(
        precision="fp32" if item == 4 else "bf16",
        serving=weights + packed * size.num_parameters + cache,
        adapters=activations + (0 if shared else weights),
        full=weights + 4 * 4 * size.num_parameters + activations,
        read_per_token=size.num_active * (packed or item),
    )


def describe(model: Path, machine: Machine) -> tuple[bool, str, str, str]:
    """Whether it can be served, its memory use, what to do if it does not fit, and its speed."""
    from openclaw_rl.engine.weights import read_checkpoint

    checkpoint, size = read_checkpoint(model), size_of(model)
    packed = packed_bytes(checkpoint, machine.device)
    found = fit(checkpoint, size, machine.device, packed)
    room = _USABLE * machine.memory
    where = "card" if machine.device == "cuda" else "machine"
    parts = [
        f"{size.num_parameters / 1e9:.2f} billion parameters in {found.precision} on the {where}",
        f"serving takes {found.serving / _GB:.1f} GB",
        f"with adapters {found.learning / _GB:.1f}",
        f"with all weights {(found.serving + found.full) / _GB:.1f}",
        f"of {machine.memory / _GB:.0f} (computed)",
    ]
    path = "fast" if checkpoint.is_fast else "general"
    kept = "" if not packed else " in 4 bit" if packed < 1 else " in bf16"
    speed = (
        f"{path} path, at most {machine.bandwidth / found.read_per_token:.3g} tokens/s at one stream: "
        f"{found.read_per_token / _GB:.2f} GB{kept} a token (computed) at "
        f"{machine.bandwidth / _GB:.0f} GB/s (measured now)"
    )
    fix = ""
    if found.serving > room:
        fix = "choose a smaller model, or another machine: --engine, --upstream"
    elif found.learning > room:
        fix = "it can be served without learning (--no-train), or choose a smaller model"
    return found.serving <= room, ", ".join(parts), fix, speed
