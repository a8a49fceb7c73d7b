"""Matrix products of the frozen base, one class per way to compute them.

A kernel holds one *projection*: the rows of one or more checkpoint matrices that share their
input (q, k and v; gate and up). Inputs are in the engine's activation dtype. A kernel chooses its
own internal precision; its log-prob error is measured, not assumed.

``native`` kernels are our own C (``csrc/``). Where they are unavailable, torch's private low-precision
operators are used instead: they are named only in this file, probed before use, and chosen by measurement
(``choose.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from openclaw_rl.engine.build import Unavailable
from openclaw_rl.engine.levels import LEVELS
from openclaw_rl.engine.native import (
    Native,
    Product,
    check_tiles,
    load_native,
    pack_bf16,
    pack_int4,
    pack_int8,
)
from openclaw_rl.errors import did_you_mean

_GROUP = 32
_GROUPS_AT_ONCE = 4096


class Kernel(Protocol):
    """``x_RI -> y_RO`` for one projection; the result may be in a lower precision than ``x``."""

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor: ...


Weights = Sequence[torch.Tensor]
Biases = Sequence[torch.Tensor | None]


class FloatKernel:
    """The stored weights in the activation dtype; the reference for every other kernel.

    Matrices stay separate tensors: joining them would copy them out of the memory-mapped file. On a GPU
    they are copies anyway, so they are joined.
    """

    def __init__(self, weights: Weights, biases: Biases) -> None:
        self._parts = list(zip(weights, biases, strict=True))
        if weights[0].is_cuda and len(weights) > 1:
            bias = _join_biases(weights, biases)
            joined = torch.cat(list(weights))
            self._parts = [(joined, None if bias is None else bias.to(joined.dtype))]

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        if len(self._parts) == 1:
            weight, bias = self._parts[0]
            return F.linear(x_RI, weight, bias)
        return torch.cat([F.linear(x_RI, weight, bias) for weight, bias in self._parts], dim=-1)

    def joined(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All its rows as one matrix and bias: no copy on a GPU."""
        if len(self._parts) == 1:
            return self._parts[0]
        weights, biases = [weight for weight, _ in self._parts], [bias for _, bias in self._parts]
        return torch.cat(weights), _join_biases(weights, biases)


class Bf16Kernel:
    """bf16 weights and products, fp32 outside: half the bytes, twice the arithmetic throughput."""

    def __init__(self, weights: Weights, biases: Biases) -> None:
        weight = torch.cat([weight.bfloat16() for weight in weights])
        # Packed for the product in advance: twice as fast at 12 rows, never slower.
        self._is_packed = weight.device.type == "cpu" and _has_bf16_products()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 64) if self._is_packed else weight
        self._bias = _join_biases(weights, biases)

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        x = x_RI.bfloat16()
        y_RO: torch.Tensor
        if self._is_packed:
            y_RO = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        else:
            y_RO = F.linear(x, self._weight)
        return y_RO if self._bias is None else y_RO + self._bias


def _has_bf16_products() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Int4Kernel:
    """int4 weights in groups of 32 with scale and zero point, bf16 activations.

    Weights from a 4-bit file already lie on such a grid; ``quantise_int4`` finds it, so only their
    scales are rounded.
    """

    def __init__(self, weights: Weights, biases: Biases) -> None:
        quantised = [quantise_int4(weight.float()) for weight in weights]
        codes, scale, low = (torch.cat(parts) for parts in zip(*quantised, strict=True))
        self._packed = _pack_int4(codes, scale, low + 8 * scale)
        self._bias = _join_biases(weights, biases)

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        y_RO = _int4_product(x_RI.bfloat16(), self._packed)
        return y_RO if self._bias is None else y_RO + self._bias


class WideInt4Kernel:
    """8-bit weights as two int4 products, high and low digit: twice the cost, 1/16 the step.

    For matrices that 4-bit files keep in 8 bits, such as the token embedding.
    """

    def __init__(self, weight_OI: torch.Tensor) -> None:
        rows, columns = weight_OI.shape
        groups = weight_OI.float().reshape(rows, columns // _GROUP, _GROUP)
        scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
        codes = ((groups / scale).round() + 128).reshape(rows, columns).to(torch.int32)
        # w = scale * (16 * high + low - 128) = (high - 8) * 16 * scale + (low - 8) * scale + 8 * scale.
        self._high = _pack_int4(codes // 16, 16 * scale[..., 0], torch.zeros_like(scale[..., 0]))
        self._low = _pack_int4(codes % 16, scale[..., 0], 8 * scale[..., 0])

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        x = x_RI.bfloat16()
        return _int4_product(x, self._high).to(x_RI.dtype) + _int4_product(x, self._low)


class Int8Kernel:
    """8-bit weights with one scale per row; inputs as two 8-bit digits, which lose almost nothing.

    Reads fewer bytes than ``WideInt4Kernel`` and uses integer instructions: a third of the time at
    eight rows. A row's scale does not depend on the rest of the batch.
    """

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self._scale = (weight_OI.float().abs().amax(1) / 127).clamp_min(1e-12)
        codes = (weight_OI / self._scale.unsqueeze(1)).round().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(codes, None)
        self._zero = torch.zeros(weight_OI.shape[0], dtype=torch.int32)

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        step = (x_RI.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
        codes = x_RI / step
        high = codes.round()
        low = (codes - high) * 254
        digits = (torch.cat([high, low]).round_() + 128).to(torch.uint8)
        y_high, y_low = self._product(digits).chunk(2)
        result: torch.Tensor = y_high.add_(y_low, alpha=1 / 254).mul_(step)
        return result

    def _product(self, codes_RI: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            codes_RI, 1.0, 128, self._packed, self._scale, self._zero,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return product

    @staticmethod
    def is_exact() -> bool:
        """Whether this CPU sums large codes correctly: older instructions overflow silently."""
        try:
            product = Int8Kernel(torch.ones(16, 64))(torch.ones(2, 64))
        except (AttributeError, RuntimeError):
            return False
        return torch.allclose(product, torch.full((2, 16), 64.0))


class RefinedHead:
    """Logits from a low-precision product, with the best candidates recomputed in full precision.

    Rounding affects only the unlikely tokens; the log-probs of the likely ones are as exact as the
    hidden state they come from.
    """

    def __init__(self, weight_VH: torch.Tensor, num_exact: int = 512) -> None:
        self._approximate: Kernel = (Int8Kernel if Int8Kernel.is_exact() else WideInt4Kernel)(weight_VH)
        self._weight_VH, self._num_exact = weight_VH, num_exact

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        logits_RV = self._approximate(x_RI)
        best_RN = logits_RV.topk(self._num_exact, dim=-1, sorted=False).indices
        rows_RNH = F.embedding(best_RN, self._weight_VH)
        exact_RN = torch.bmm(x_RI.unsqueeze(1), rows_RNH.transpose(1, 2)).squeeze(1)
        return logits_RV.scatter_(1, best_RN, exact_RN)


class NativeKernel:
    """A product computed by ``csrc/``, with fp32 inputs and outputs."""

    def __init__(self, native: Native, product: Product) -> None:
        self._native, self.product = native, product

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        return self._native.product(self.product, x_RI)


def native_int4(native: Native, weights: Weights, biases: Biases) -> NativeKernel:
    """The grid of ``Int4Kernel`` with fp16 scales; inputs rounded to 16 bits in groups of 32."""
    for weight in weights:
        check_tiles(weight)
    quantised = [quantise_int4(weight.float()) for weight in weights]
    codes, scale, low = (torch.cat(parts) for parts in zip(*quantised, strict=True))
    width, size = codes.shape
    product = Product("int4", pack_int4(codes, scale, low), _join_biases(weights, biases), size, width)
    return NativeKernel(native, product)


def native_bf16(native: Native, weights: Weights, biases: Biases) -> NativeKernel:
    """bf16 weights, nothing else rounded: exact for checkpoints in bf16."""
    tiles = pack_bf16(torch.cat([weight.bfloat16() for weight in weights]))
    width, size = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
    return NativeKernel(native, Product("bf16", tiles, _join_biases(weights, biases), size, width))


class NativeHead:
    """Logits from 8-bit weights in groups of 32, with the likeliest recomputed in full precision."""

    def __init__(self, native: Native, weight_VH: torch.Tensor, num_exact: int = 512) -> None:
        self._native, self._weight_VH, self._num_exact = native, weight_VH, num_exact
        width, size = check_tiles(weight_VH)
        groups = weight_VH.reshape(width, -1, _GROUP)
        scale = (groups.abs().amax(-1) / 127).half().float().clamp_min(1e-7)
        codes = (groups / scale.unsqueeze(-1)).round_().clamp_(-127, 127)
        self._product = Product("int8", pack_int8(codes.view_as(weight_VH), scale), None, size, width)

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        return self._native.head(self._product, x_RI, self._weight_VH, self._num_exact)


class SplitKernel:
    """One kernel for few rows (decoding), another for many (prompts)."""

    def __init__(self, few: Kernel, many: Kernel, threshold: int) -> None:
        self.few, self._many, self._threshold = few, many, threshold

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        return (self.few if x_RI.shape[0] < self._threshold else self._many)(x_RI)

    def with_threshold(self, threshold: int) -> SplitKernel:
        return SplitKernel(self.few, self._many, threshold)


@dataclass(frozen=True, slots=True)
class KernelSet:
    """How to build a model's products: its layers' projections and its head."""

    projection: Callable[[Weights, Biases], Kernel]
    head: Callable[[torch.Tensor], Kernel]
    native: Native | None = None
    """Library that runs whole layers, if all projections are native."""
    native_rows: int = 0
    """It runs batches of fewer rows than this."""


def _float_head(weight_VH: torch.Tensor) -> Kernel:
    return FloatKernel([weight_VH], [None])


def _int4_head(weight_VH: torch.Tensor) -> Kernel:
    return SplitKernel(RefinedHead(weight_VH), _float_head(weight_VH), threshold=16)


def _native_head(native: Native, weight_VH: torch.Tensor) -> Kernel:
    try:
        few: Kernel = NativeHead(native, weight_VH)
    except Unavailable:  # a vocabulary with a few tokens added does not divide into tiles
        return _float_head(weight_VH)
    return SplitKernel(few, _float_head(weight_VH), threshold=16)


_NativeProjection = Callable[[Native, Weights, Biases], NativeKernel]


def _native_int4_set(level: str | None) -> KernelSet:
    native = load_native(level)
    return KernelSet(partial(native_int4, native), partial(_native_head, native), native, native_rows=1 << 31)


def _split_set(few: _NativeProjection, many: type[Bf16Kernel | FloatKernel], level: str | None) -> KernelSet:
    """Native kernels for decoding, torch's for prompts."""
    native, threshold = load_native(level), 20

    def projection(weights: Weights, biases: Biases) -> Kernel:
        return SplitKernel(few(native, weights, biases), many(weights, biases), threshold)

    return KernelSet(projection, partial(_native_head, native), native, native_rows=threshold)


def _native_bf16_set(level: str | None) -> KernelSet:
    return _split_set(native_bf16, Bf16Kernel if _has_bf16_products() else FloatKernel, level)


_TORCH: dict[str, KernelSet] = {
    "float": KernelSet(FloatKernel, _float_head),
    "bf16": KernelSet(Bf16Kernel, _float_head),
    "int4": KernelSet(lambda w, b: SplitKernel(Int4Kernel(w, b), FloatKernel(w, b), 64), _int4_head),
    "int4+bf16": KernelSet(lambda w, b: SplitKernel(Int4Kernel(w, b), Bf16Kernel(w, b), 9), _int4_head),
}
#: Prompts are large products, which torch computes faster on CPUs with matrix instructions (AMX).
_NATIVE: dict[str, Callable[[str | None], KernelSet]] = {
    "native": _native_int4_set,
    "native+bf16": partial(_split_set, native_int4, Bf16Kernel),
    "native+float": partial(_split_set, native_int4, FloatKernel),
    "native-bf16": _native_bf16_set,
}
#: Names of kernels. ``float`` is the reference, in the engine's dtype.
KERNELS = (*_TORCH, *_NATIVE)


def check_kernel_name(name: str) -> None:
    """ValueError for an unknown name. Whether this machine supports the kernel shows when it is built."""
    plain, _, level = name.partition("@")
    known = ["auto", *KERNELS, *(f"native@{level}" for level in LEVELS)]
    if plain not in known or (level and (plain not in _NATIVE or level not in LEVELS)):
        raise ValueError(f"unknown kernel {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")


def kernel_set(name: str) -> KernelSet:
    """The kernel set of that name. ``native@avx2`` is ``native`` at that level, not the best available."""
    check_kernel_name(name)
    plain, _, level = name.partition("@")
    return _NATIVE[plain](level or None) if plain in _NATIVE else _TORCH[plain]


# --- the int4 operators ----------------------------------------------------------------------


def quantise_int4(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0..15 and, per group of 32, the step and the lowest value.

    Weights from a 4-bit file use up to 16 levels of a grid. A group that happens to use fewer would
    be distorted by stretching its range over all 16, so fewer levels are tried where 16 do not fit.
    """
    rows, columns = weight_OI.shape
    # A part at a time, so that its intermediate results stay in the processor's cache.
    found = [_quantise_groups(part) for part in weight_OI.reshape(-1, _GROUP).split(_GROUPS_AT_ONCE)]
    codes, step, low = (torch.cat(parts) for parts in zip(*found, strict=True))
    shape = (rows, columns // _GROUP)
    return codes.reshape(rows, columns), step.reshape(shape), low.reshape(shape)


def _quantise_groups(groups_GW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = groups_GW.amin(-1, keepdim=True), groups_GW.amax(-1, keepdim=True)
    step = ((high - low) / 15).clamp_min(1e-12)
    codes, is_on = _on_grid(groups_GW, low, step)
    for levels in range(14, 0, -1):
        off = (~is_on).nonzero().squeeze(-1)
        if not len(off):
            break
        coarser = ((high[off] - low[off]) / levels).clamp_min(1e-12)
        found, fits = _on_grid(groups_GW[off], low[off], coarser)
        codes[off[fits]], step[off[fits]], is_on[off[fits]] = found[fits], coarser[fits], True
    return codes.clamp_(0, 15).to(torch.uint8), step, low


def _on_grid(
    groups_GW: torch.Tensor, low: torch.Tensor, step: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest codes, and which groups lie on that grid, but for a thousandth of a step."""
    scaled = (groups_GW - low).div_(step)
    codes = scaled.round()
    return codes, scaled.sub_(codes).abs_().amax(-1) <= 1e-3


def _pack_int4(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack for torch's operator, which computes ``(code - 8) * scale + zero``, scale and zero in bf16."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    return packed, torch.stack([scale.T, zero.T], dim=-1).contiguous().bfloat16()


def _int4_product(x_RI: torch.Tensor, packed: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    product: torch.Tensor = torch._weight_int4pack_mm_for_cpu(x_RI, packed[0], _GROUP, packed[1])
    return product


def _join_biases(weights: Weights, biases: Biases) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    pairs = zip(weights, biases, strict=True)
    return torch.cat([w.new_zeros(w.shape[0]).float() if b is None else b.float() for w, b in pairs])
