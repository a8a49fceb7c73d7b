"""The engine's products for training: frozen linear layers under trainable adapters.

A LoRA step multiplies by the frozen base twice, forward and backward. The forward product is the engine's
own kernel. The backward product sums over a matrix's rows, across the groups that share a scale, so it uses
torch: in bf16 with fp32 sums where the CPU multiplies bf16 (four times as fast, and precise enough for
gradients), else in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from openclaw_rl.engine.build import Unavailable
from openclaw_rl.engine.kernels import NativeKernel, native_int4, quantise_int4
from openclaw_rl.engine.native import load_native

#: Largest relative error of a product; weights off the 4-bit grid are far above it.
_MAX_ERROR = 1e-3
#: Weights that share a step and an offset.
_GROUP = 32


class FrozenLinear(torch.nn.Module):
    """Replaces a ``Linear`` whose weights get no gradient."""

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
        return multiply_gradient(grad, weight_OI), None, None


@cache
def multiplies_bf16() -> bool:
    """Whether the CPU has bf16 instructions; without them torch emulates bf16 slowly."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def multiply_gradient(grad: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    if grad.device.type == "cpu" and grad.dtype == torch.float32 and multiplies_bf16():
        return (grad.bfloat16() @ weight_OI.bfloat16()).float()
    return grad @ weight_OI


@torch.no_grad()
def native_linear(layer: torch.nn.Linear) -> torch.nn.Module:
    """The layer with native products, or unchanged where they are unavailable or differ."""
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


class Int4Linear(torch.nn.Module):
    """A frozen layer held in memory only in 4 bits, with a step and an offset per 32 weights.

    Works wherever torch does: weights are dequantised for each product, forward and backward. On a CPU with
    native kernels the forward product is the engine's.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        codes_OI, step_OG, low_OG = quantise_int4(weight.float())
        pairs = codes_OI.view(len(codes_OI), -1, 2)
        self.dtype, self.bias = weight.dtype, layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer(
            "codes", (pairs[..., 0] | pairs[..., 1] << 4).to(weight.device), persistent=False
        )
        scales = torch.stack([step_OG, low_OG]).half().to(weight.device)
        self.register_buffer("scales", scales, persistent=False)
        self._kernel = _kernel_of(layer, self.dequantised())

    def dequantised(self, out_OI: torch.Tensor | None = None) -> torch.Tensor:
        """The weights, in ``out_OI`` if given."""
        if self.codes.is_cuda and (dequantise := _gpu_kernel()) is not None:
            if out_OI is None:
                out_OI = self.scales.new_empty(self.out_features, self.in_features, dtype=self.dtype)
            dequantise(self.codes, self.scales, out_OI)
            return out_OI
        weight_OI = self._dequantised()
        return weight_OI if out_OI is None else out_OI.copy_(weight_OI)

    def _dequantised(self) -> torch.Tensor:
        codes = self.codes
        step_OG1, low_OG1 = self.scales.float().unsqueeze(-1)
        digits_OGI = torch.stack([codes & 15, codes >> 4], dim=-1).view(len(codes), -1, _GROUP)
        weight_OI: torch.Tensor = (digits_OGI * step_OG1 + low_OG1).view(len(codes), -1)
        return weight_OI.to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Int4Product.apply(x, self)  # type: ignore[no-untyped-call]
        return y

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if self._kernel is None:
            return F.linear(x, self.dequantised(), self.bias)
        return self._kernel(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class _Int4Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Int4Linear) -> torch.Tensor:
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return multiply_gradient(grad, ctx.layer.dequantised()), None


@cache
def _gpu_kernel() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None:
    try:
        from openclaw_rl.engine.int4_gpu import dequantise
    except ImportError:
        return None
    return dequantise


def _kernel_of(layer: torch.nn.Linear, weight_OI: torch.Tensor) -> NativeKernel | None:
    if weight_OI.device.type != "cpu" or weight_OI.dtype != torch.float32:
        return None
    try:
        return native_int4(load_native(), [weight_OI], [layer.bias])
    except Unavailable:
        return None


@torch.no_grad()
def int4_linear(layer: torch.nn.Linear) -> torch.nn.Module:
    """The layer in 4 bits; unchanged if its rows do not divide into whole groups."""
    return layer if layer.in_features % _GROUP else Int4Linear(layer)
