"""Chooses the kernels for this machine by measurement.

A candidate is built for a few real layers and timed against the float reference; it must be
faster and its products close to the reference. So a CPU without the instructions, or weights off
the 4-bit grid, exclude a kernel without a special case, and the reason is reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from openclaw_rl.engine.kernels import KERNELS, Kernel, kernel_set
from openclaw_rl.engine.lora import PROJECTIONS
from openclaw_rl.engine.weights import Checkpoint, load_tensors

#: Largest relative error of a layer's products; bf16 rounding alone gives about 0.003.
MAX_ERROR = 0.01
#: A kernel must beat a more accurate one by more than the measurement noise.
_MIN_GAIN = 1.15
_ROUNDS = 3
_LAYERS = 4
_MANY = 64


@dataclass(frozen=True, slots=True)
class KernelChoice:
    name: str
    reasons: tuple[str, ...]
    """One line per candidate: what was measured, or why it was ruled out."""


def choose_kernel(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, kernel: str
) -> KernelChoice:
    """The fastest kernel that is accurate enough; ``kernel`` forces one by name."""
    if not checkpoint.is_fast:
        if kernel not in ("auto", "float"):
            raise ValueError(f"kernel {kernel!r} is for models with a fast path; use --kernel auto")
        return KernelChoice(
            "float", (f"float: {checkpoint.architecture} runs through transformers' own modules",)
        )
    if kernel != "auto":
        is_plain = device.type == "cpu" and dtype == torch.float32
        if kernel_set(kernel).native and not is_plain:
            raise ValueError(f"kernel {kernel!r} is for fp32 on a CPU; use --device cpu, or --kernel auto")
        return KernelChoice(kernel, (f"{kernel}: as asked",))
    if device.type != "cpu" or dtype != torch.float32:
        return KernelChoice("float", ("float: low-precision kernels are for fp32 on a CPU",))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _choose(_some_layers(checkpoint))
    finally:
        torch.set_num_threads(num_threads)


def _choose(weights: list[torch.Tensor]) -> KernelChoice:
    candidates: dict[str, _Kernels] = {}
    errors: dict[str, float] = {}
    reasons: list[str] = []
    for name in KERNELS:
        try:
            candidates[name] = _build(name, weights)
            errors[name] = _error(candidates[name], candidates["float"])
        except (RuntimeError, AttributeError) as problem:  # AttributeError: torch lacks the operator
            candidates.pop(name, None)
            reasons.append(f"{name}: not on this machine ({str(problem).splitlines()[0]})")
    costs = _measure(candidates)
    reasons += [f"{name}: {cost}, relative error {errors[name]:.4f}" for name, cost in costs.items()]
    close = [name for name in costs if errors[name] <= MAX_ERROR]
    fastest = min(costs[name].total for name in close)
    # Among kernels that are about equally fast, take the most accurate.
    as_fast = [name for name in close if costs[name].total <= _MIN_GAIN * fastest]
    return KernelChoice(min(as_fast, key=lambda name: errors[name]), tuple(reasons))


_Kernels = list[tuple[torch.Tensor, Kernel]]


@dataclass(frozen=True, slots=True)
class _Cost:
    one_row_s: float
    many_rows_s: float

    @property
    def total(self) -> float:
        """Seconds per generated token: agents send about eight new prompt tokens for each."""
        return self.one_row_s + 8 * self.many_rows_s / _MANY

    def __str__(self) -> str:
        return f"{self.one_row_s * 1e3:.2f} ms at 1 row, {self.many_rows_s * 1e3:.1f} ms at {_MANY}"


def _measure(candidates: dict[str, _Kernels]) -> dict[str, _Cost]:
    """CPU seconds of one thread, best of several interleaved rounds.

    Wall-clock time would depend on whatever else the machine is running.
    """
    best = dict.fromkeys(candidates, _Cost(float("inf"), float("inf")))
    for _ in range(_ROUNDS):
        for name, kernels in candidates.items():
            best[name] = _Cost(
                min(best[name].one_row_s, _time(kernels, 1)),
                min(best[name].many_rows_s, _time(kernels, _MANY)),
            )
    return best


def _build(name: str, weights: list[torch.Tensor]) -> _Kernels:
    projection = kernel_set(name).projection
    return [(weight, projection([weight], [None])) for weight in weights]


def _some_layers(checkpoint: Checkpoint) -> list[torch.Tensor]:
    """Enough weights to exceed the CPU cache, as in real use."""
    tensors = load_tensors(checkpoint.path)
    layers = range(0, checkpoint.shape.num_layers, max(1, checkpoint.shape.num_layers // _LAYERS))
    names = [module for modules in PROJECTIONS.values() for module in modules]
    return [tensors[f"model.layers.{layer}.{name}.weight"].float() for layer in layers for name in names]


@torch.inference_mode()
def _error(kernels: _Kernels, reference: _Kernels) -> float:
    """The largest relative error of any product, for few and for many rows."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for (weight, mine), (_, theirs) in zip(kernels, reference, strict=True):
        for rows in (4, 128):
            x = torch.randn(rows, weight.shape[1], generator=generator)
            expected = theirs(x)
            worst = max(worst, float((mine(x).float() - expected).norm() / expected.norm()))
    return worst


@torch.inference_mode()
def _time(kernels: _Kernels, rows: int) -> float:
    inputs = [torch.ones(rows, weight.shape[1]) for weight, _ in kernels]
    start = time.thread_time()
    for (_, kernel), x in zip(kernels, inputs, strict=True):
        kernel(x)
    return time.thread_time() - start


def kernel_off_the_grid(kernel: str) -> str:
    """The closest kernel for weights that are not on a 4-bit grid."""
    plain, at, level = kernel.partition("@")
    if plain.startswith("native"):
        return f"native-bf16{at}{level}"
    return "bf16" if plain in ("bf16", "int4+bf16") else "float"
