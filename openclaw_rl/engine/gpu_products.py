"""Triton kernels of a decoding step's linear layers, with the small work around them done on the way.

One row: a product reads its matrix once and nothing else of size, so what matters is that the card's memory
never waits. The norm before it, the adapter, the gate and the residual behind it are part of the same kernel.
Several rows: cuBLAS multiplies; norm with residual, and the gate, are a kernel each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

#: Inputs read at a time, and outputs of one program: measured on a H200, as the number of warps below.
_BLOCK = 512
_OUTPUTS = 4
_FEW_OUTPUTS = 4096
_WIDE = 1024


@dataclass(frozen=True, slots=True)
class Matrix:
    """A projection's weights. ``gated``: its output is ``silu(first half) * second half``."""

    weight_OI: torch.Tensor
    bias_O: torch.Tensor | None = None
    gated: bool = False

    @property
    def num_outputs(self) -> int:
        return self.weight_OI.shape[0] // (2 if self.gated else 1)


@dataclass(frozen=True, slots=True)
class LowRow:
    """One row's share of an adapter: ``A @ x`` in parts, and where its ``B`` is."""

    parts_SK: torch.Tensor
    """Its sum over the first dimension is what ``B`` multiplies."""
    table_SE3: torch.Tensor
    slot_R: torch.Tensor
    entry: int


@triton.jit
def _weights(weight, output, column, limit, SIZE: tl.constexpr, IS_EVEN: tl.constexpr):
    place = weight + output[:, None] * SIZE + column[None, :]
    if IS_EVEN:  # a mask would cost as much as the product
        return tl.load(place, eviction_policy="evict_first")
    return tl.load(place, mask=(output < limit)[:, None] & (column < SIZE)[None, :], other=0.0)


@triton.jit
def _low_rank(low, b, ranks, output, width, RANKS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """``B`` times one row's low-rank input, for some outputs."""
    rank = tl.arange(0, RANKS)
    part = tl.arange(0, PADDED)
    is_there = (part < PARTS)[:, None] & (rank < ranks)[None, :]
    left = tl.sum(tl.load(low + part[:, None] * RANKS + rank[None, :], mask=is_there, other=0.0), axis=0)
    is_there = (output < width)[:, None] & (rank < ranks)[None, :]
    right = tl.load(b + rank[None, :] * width + output[:, None], mask=is_there, other=0.0)
    return tl.sum(right.to(tl.float32) * left[None, :], axis=1)


@triton.jit(do_not_specialize=["entry"])
def _multiply(
    x, weight, bias, norm, residual, out, low, table, slot_R, entry, count, width, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, OUTPUTS: tl.constexpr, IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, HAS_RESIDUAL: tl.constexpr, IS_GATED: tl.constexpr,
    NUM: tl.constexpr, RANKS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Some outputs of one row: norm, product, bias, adapter, gate and residual."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    upper = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    if RANKS:
        slot = tl.load(slot_R)
    for at in tl.static_range(0, SIZE, BLOCK):
        column = at + tl.arange(0, BLOCK)
        weights = _weights(weight, output, column, count, SIZE, IS_EVEN)
        if IS_GATED:
            upper_weights = _weights(weight, count + output, column, width, SIZE, IS_EVEN)
        if OVERLAP and at == 0:
            tl.extra.cuda.gdc_wait()  # what was read so far does not depend on the kernels before
        if SIZE % BLOCK == 0:
            value = tl.load(x + column).to(tl.float32)
        else:
            value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += value * value
            value *= tl.load(norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
        total += value[None, :] * weights.to(tl.float32)
        if IS_GATED:
            upper += value[None, :] * upper_weights.to(tl.float32)
        if RANKS and at == SIZE // BLOCK // 2 * BLOCK:
            # Each of these loads waits for the one before, so they run beside those of the weights.
            item = table + (tl.maximum(slot, 0) * NUM + entry) * 3
            ranks = tl.where(slot < 0, 0, tl.load(item + 2))
            b = tl.load(item + 1).to(tl.pointer_type(x.dtype.element_ty))
    result = tl.sum(total, axis=1)
    raised = tl.sum(upper, axis=1)
    if RANKS:
        result += _low_rank(low, b, ranks, output, width, RANKS, PARTS, PADDED)
        if IS_GATED:
            raised += _low_rank(low, b, ranks, count + output, width, RANKS, PARTS, PADDED)
    if HAS_NORM:
        factor = 1 / tl.sqrt(tl.sum(squares) / SIZE + eps)
        result *= factor
        raised *= factor
    is_there = output < count
    if HAS_BIAS:
        result += tl.load(bias + output, mask=is_there, other=0.0).to(tl.float32)
        if IS_GATED:
            raised += tl.load(bias + count + output, mask=is_there, other=0.0).to(tl.float32)
    if IS_GATED:
        result = result / (1 + tl.exp(-result)) * raised
    if HAS_RESIDUAL:
        result += tl.load(residual + output, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + output, result.to(out.dtype.element_ty), mask=is_there)


def multiply(
    matrix: Matrix,
    x_I: torch.Tensor,
    norm_I: torch.Tensor | None = None,
    eps: float = 0.0,
    residual_O: torch.Tensor | None = None,
    low: LowRow | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """One row: ``residual + gate(matrix @ norm(x) + adapter)``, each part only where it is given."""
    weight, bias = matrix.weight_OI, matrix.bias_O
    (width, size), count = weight.shape, matrix.num_outputs
    out = torch.empty(count, device=x_I.device, dtype=dtype or x_I.dtype)
    parts, ranks = low.parts_SK.shape if low else (1, 0)
    outputs = _OUTPUTS // 2 if matrix.gated else _OUTPUTS  # each has two rows of weights where gated
    _multiply[(triton.cdiv(count, outputs),)](
        x_I, weight, x_I if bias is None else bias, x_I if norm_I is None else norm_I,
        x_I if residual_O is None else residual_O, out,
        low.parts_SK if low else x_I, low.table_SE3 if low else x_I, low.slot_R if low else x_I,
        low.entry if low else 0, count, width, eps,
        SIZE=size, BLOCK=_BLOCK, OUTPUTS=outputs, IS_EVEN=not (size % _BLOCK or count % outputs),
        HAS_BIAS=bias is not None, HAS_NORM=norm_I is not None, HAS_RESIDUAL=residual_O is not None,
        IS_GATED=matrix.gated, NUM=low.table_SE3.shape[1] if low else 0, RANKS=ranks, PARTS=parts,
        PADDED=triton.next_power_of_2(parts),
        num_warps=2 if count <= _FEW_OUTPUTS and not matrix.gated else 4, **overlap(x_I.device),
    )  # fmt: skip
    return out


@cache
def overlap(device: torch.device) -> dict[str, bool]:
    """Options of a launch that starts while the kernel before it still runs, which reads its weights ahead.

    Such a kernel waits before it reads anything that the kernels before it wrote, and before it writes.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {"OVERLAP": False}
    return {"OVERLAP": True, "launch_pdl": True}


@triton.jit
def _add_norm(x, added, norm, out, eps, SIZE: tl.constexpr, PADDED: tl.constexpr, HAS_ADDED: tl.constexpr):
    """``x += added`` for one row, and its norm."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    column = tl.arange(0, PADDED)
    is_there = column < SIZE
    value = tl.load(x + row + column, mask=is_there, other=0.0).to(tl.float32)
    if HAS_ADDED:
        value += tl.load(added + row + column, mask=is_there, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty)
        tl.store(x + row + column, value, mask=is_there)
        value = value.to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(value * value) / SIZE + eps)
    value = value * factor * tl.load(norm + column, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + row + column, value.to(out.dtype.element_ty), mask=is_there)


def add_norm(
    x_RH: torch.Tensor, added_RH: torch.Tensor | None, norm_H: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add to ``x`` in place, and return its RMS norm."""
    rows, size = x_RH.shape
    out = torch.empty_like(x_RH)
    _add_norm[(rows,)](
        x_RH, x_RH if added_RH is None else added_RH, norm_H, out, eps,
        SIZE=size, PADDED=triton.next_power_of_2(size), HAS_ADDED=added_RH is not None, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _gate(both, out, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < COUNT
    gate = tl.load(both + row * 2 * COUNT + column, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * COUNT + COUNT + column, mask=is_there, other=0.0).to(tl.float32)
    value = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * COUNT + column, value.to(out.dtype.element_ty), mask=is_there)


def gate(both_RO: torch.Tensor) -> torch.Tensor:
    """``silu(first half) * second half`` of each row."""
    rows, count = both_RO.shape[0], both_RO.shape[1] // 2
    out = torch.empty(rows, count, device=both_RO.device, dtype=both_RO.dtype)
    _gate[rows, triton.cdiv(count, _WIDE)](both_RO, out, COUNT=count, BLOCK=_WIDE)
    return out
