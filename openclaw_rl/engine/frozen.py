"""The engine's products for training: a frozen layer's forward pass, under adapters that learn.

A LoRA step multiplies by the frozen base twice, forward and backward. Forward is the very product that the
engine computes, at the engine's speed. Backward sums over a matrix's rows, across the groups that share a
scale, so it stays with torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from openclaw_rl.engine.build import Unavailable
from openclaw_rl.engine.kernels import NativeKernel, native_int4
from openclaw_rl.engine.native import load_native

#: Relative error of a product; weights that do not lie on a 4-bit grid are far above it.
_MAX_ERROR = 1e-3


class FrozenLinear(torch.nn.Module):
    """Stands in for a ``Linear`` whose weights get no gradient."""

    def __init__(self, layer: torch.nn.Linear, kernel: NativeKernel) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _FrozenProduct.apply(x, self.weight, self._kernel)  # type: ignore[no-untyped-call]
        return y


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor, kernel: NativeKernel) -> torch.Tensor:
        ctx.save_for_backward(weight_OI)
        return kernel(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (weight_OI,) = ctx.saved_tensors
        return grad @ weight_OI, None, None


@torch.no_grad()
def native_linear(layer: torch.nn.Linear) -> torch.nn.Module:
    """The same layer with native products, or the layer itself where they would not be the same."""
    if layer.weight.device.type != "cpu" or layer.weight.dtype != torch.float32:
        return layer
    try:
        kernel = native_int4(load_native(), [layer.weight], [layer.bias])
    except Unavailable:
        return layer
    x = torch.randn(4, layer.in_features, generator=torch.Generator().manual_seed(0))
    expected = F.linear(x, layer.weight, layer.bias)
    error = float((kernel(x) - expected).norm() / expected.norm())
    return FrozenLinear(layer, kernel) if error <= _MAX_ERROR else layer
