"""Matrix products of the frozen base, one class per way to compute them.

A kernel holds one *projection*: the rows of one or more checkpoint matrices that share their
input (q, k and v; gate and up). Inputs and outputs are in the engine's activation dtype; what
happens inside is the kernel's business, and its log-prob error is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F


class Kernel(Protocol):
    """``x_RI -> y_RO`` for one projection."""

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor: ...


class FloatKernel:
    """The stored weights in the activation dtype; the reference every other kernel is held to.

    Matrices stay separate tensors: joining them would copy them out of the memory-mapped file.
    """

    def __init__(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> None:
        self._parts = list(zip(weights, biases, strict=True))

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        if len(self._parts) == 1:
            weight, bias = self._parts[0]
            return F.linear(x_RI, weight, bias)
        return torch.cat([F.linear(x_RI, weight, bias) for weight, bias in self._parts], dim=-1)
