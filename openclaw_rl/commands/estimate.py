"""How fast a model would be on this machine before it is here: computed from its number of parameters.

Two speeds are measured first, within a second or two: how fast memory is read, which bounds tokens per
second, and how fast matrices are multiplied, which bounds training. ``openclaw-rl doctor`` is exact about
memory once the model is here; steps that were taken are on the dashboard's Learning page.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from openclaw_rl.commands.fit import Machine, measure_machine
from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.types import Needs

#: Of a question and a short answer; what examples begin with alike is computed once. A step for the wish
#: "one short sentence" of the default model had 33.
EXAMPLE_TOKENS = 50
#: A parameter for each token: multiply and add, forward and backward. Frozen weights get no gradient.
_OPERATIONS = 4
#: Of the speed that products alone have, what a whole step reaches; measured with bench/train.py.
_REACHED = 0.5
#: 4 bits a weight with a scale and an offset for 32 of them, as the default model is kept on a CPU.
_PACKED_BYTES = 20 / 32
_PRODUCT_SIZE = {"cpu": 1024, "cuda": 4096}
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of this machine, measured."""

    machine: Machine
    products: float
    """Operations a second in matrix products, in the trainer's precision."""
    has_kernels: bool
    """Whether our own products serve on the CPU, which keep weights in 16 or 4 bit."""

    def tokens_per_s(self, model: str, parameters: float) -> float:
        """At one stream, at most: a token takes all weights from memory."""
        if self.machine.device == "cuda":
            size = 2.0
        elif not self.has_kernels:
            size = 4.0
        else:
            size = _PACKED_BYTES if model == DEFAULT_MODEL else 2.0
        return self.machine.bandwidth / (parameters * size)

    def step_s(self, parameters: float, num_tokens: int) -> float:
        return num_tokens * _OPERATIONS * parameters / (self.products * _REACHED)


def measure_speeds(device: str) -> Speeds:
    return Speeds(measure_machine(device), _measure_products(device), device == "cpu" and _has_kernels())


def tokens_per_step(needs: Needs) -> int:
    """Of the examples that a version is made of."""
    examples = (needs.step_examples or needs.batch_size + (needs.replay or 0)) + needs.anchors
    return needs.steps * examples * EXAMPLE_TOKENS


def _measure_products(device: str) -> float:
    import torch

    size = _PRODUCT_SIZE[device]
    left, right = torch.rand(2, size, size, device=device)
    best = float("inf")
    for _ in range(_ROUNDS + 1):  # the first wakes the threads or the card
        started = time.perf_counter()
        product = left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    del product
    return 2 * size**3 / best


def _has_kernels() -> bool:
    from openclaw_rl.engine.build import Unavailable
    from openclaw_rl.engine.native import load_native

    try:
        load_native()
    except Unavailable:
        return False
    return True
