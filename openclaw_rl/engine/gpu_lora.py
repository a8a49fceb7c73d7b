"""Adapters of a decoding step on a GPU: ``y += (x @ a.T) @ b`` with each row's own ``a`` and ``b``.

Addresses are read from a table on the device (slot, layer and projection -> A, B, ranks). The inputs are
split into parts, each a program of its own; whoever uses the low-rank result adds them up.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openclaw_rl.engine.gpu_products import overlap

#: Rows of one adapter, and ranks, that are multiplied together: the fewest that a product of Triton's takes.
GROUP_ROWS = 16
_SPAN = 512
_STEP = 64
_WIDE = 128
#: Groups processed at the same time: launching a program costs more than it does where there are fewer.
_LANES = 16


@triton.jit(do_not_specialize=["entry"])
def _shrink_row(
    x, norm, low, table, slot_R, entry,
    SIZE: tl.constexpr, NUM: tl.constexpr, RANKS: tl.constexpr, HAS_NORM: tl.constexpr,
    SPAN: tl.constexpr, FEW: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Some ranks of the only row, over one part of its inputs; its norm's factor is left out."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(0)
    rank = tl.program_id(1) * FEW + tl.arange(0, FEW)
    column = part * SPAN + tl.arange(0, SPAN)
    slot = tl.load(slot_R)
    item = table + (tl.maximum(slot, 0) * NUM + entry) * 3
    ranks = tl.where(slot < 0, 0, tl.load(item + 2))
    a = tl.multiple_of(tl.load(item).to(tl.pointer_type(x.dtype.element_ty)), 16)
    is_there = (rank < ranks)[:, None] & (column < SIZE)[None, :]
    right = tl.load(a + rank[:, None] * SIZE + column[None, :], mask=is_there, other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
    if HAS_NORM:
        value *= tl.load(norm + column, mask=column < SIZE, other=0.0).to(tl.float32)
    tl.store(low + part * RANKS + rank, tl.sum(right.to(tl.float32) * value[None, :], axis=1))


@triton.jit(do_not_specialize=["entry", "rows"])
def _shrink(
    x, low, table, groups, entry, rows,
    SIZE: tl.constexpr, NUM: tl.constexpr, MOST: tl.constexpr, RANKS: tl.constexpr, SPAN: tl.constexpr,
    STEP: tl.constexpr, FEW: tl.constexpr, LANES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Some ranks of every so many-th group of rows, over one part of their inputs."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    group = tl.program_id(0)
    part = tl.program_id(1)
    rank = tl.program_id(2) * FEW + tl.arange(0, FEW)
    slot = tl.load(groups + group)
    while slot >= 0:  # those in use come first
        row = tl.load(groups + MOST + group) + tl.arange(0, FEW)
        is_row = row < tl.load(groups + 2 * MOST + group)
        item = table + (slot * NUM + entry) * 3
        ranks = tl.load(item + 2)
        if tl.program_id(2) * FEW < ranks:
            a = tl.multiple_of(tl.load(item).to(tl.pointer_type(x.dtype.element_ty)), 16)
            total = tl.zeros([FEW, FEW], tl.float32)
            for at in tl.static_range(0, SPAN, STEP):
                column = part * SPAN + at + tl.arange(0, STEP)
                is_there = is_row[:, None] & (column < SIZE)[None, :]
                left = tl.load(x + row[:, None] * SIZE + column[None, :], mask=is_there, other=0.0)
                is_there = (rank < ranks)[None, :] & (column < SIZE)[:, None]
                right = tl.load(a + rank[None, :] * SIZE + column[:, None], mask=is_there, other=0.0)
                total = tl.dot(left, right, total, input_precision="ieee")
            place = (part * rows + row[:, None]) * RANKS + rank[None, :]
            tl.store(low + place, total, mask=is_row[:, None])
        group += LANES
        slot = tl.load(groups + group, mask=group < rows, other=-1)


@triton.jit(do_not_specialize=["entry", "rows"])
def _expand(
    y, low, table, groups, entry, rows,
    WIDTH: tl.constexpr, NUM: tl.constexpr, MOST: tl.constexpr, RANKS: tl.constexpr, PARTS: tl.constexpr,
    WIDE: tl.constexpr, FEW: tl.constexpr, LANES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add the adapter's share to some outputs of every so many-th group of rows."""
    group = tl.program_id(0)
    slot = tl.load(groups + group)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    while slot >= 0:
        row = tl.load(groups + MOST + group) + tl.arange(0, FEW)
        is_row = row < tl.load(groups + 2 * MOST + group)
        item = table + (slot * NUM + entry) * 3
        ranks = tl.load(item + 2)
        element = y.dtype.element_ty
        b = tl.multiple_of(tl.load(item + 1).to(tl.pointer_type(element)), 16)
        column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        is_column = column < WIDTH
        target = y + row[:, None] * WIDTH + column[None, :]
        is_target = is_row[:, None] & is_column[None, :]
        total = tl.load(target, mask=is_target, other=0.0).to(tl.float32)
        for first in range(0, ranks, FEW):
            rank = first + tl.arange(0, FEW)
            is_there = is_row[:, None] & (rank < ranks)[None, :]
            left = tl.zeros([FEW, FEW], tl.float32)
            for part in tl.static_range(PARTS):
                place = (part * rows + row[:, None]) * RANKS + rank[None, :]
                left += tl.load(low + place, mask=is_there, other=0.0)
            is_there = (rank < ranks)[:, None] & is_column[None, :]
            right = tl.load(b + rank[:, None] * WIDTH + column[None, :], mask=is_there, other=0.0)
            total = tl.dot(left.to(element), right, total, input_precision="ieee")
        tl.store(target, total.to(element), mask=is_target)
        group += LANES
        slot = tl.load(groups + group, mask=group < rows, other=-1)


def shrink_row(
    x_I: torch.Tensor,
    norm_I: torch.Tensor | None,
    table_SE3: torch.Tensor,
    slot_R: torch.Tensor,
    entry: int,
    ranks: int,
) -> torch.Tensor:
    """The only row's low-rank input, in parts to be added up; see ``gpu_products.LowRow``."""
    size = x_I.shape[0]
    parts = triton.cdiv(size, _SPAN)
    low_SK = torch.empty(parts, ranks, device=x_I.device)
    _shrink_row[parts, ranks // GROUP_ROWS](
        x_I, x_I if norm_I is None else norm_I, low_SK, table_SE3, slot_R, entry,
        SIZE=size, NUM=table_SE3.shape[1], RANKS=ranks, HAS_NORM=norm_I is not None, SPAN=_SPAN,
        FEW=GROUP_ROWS, **overlap(x_I.device),
    )  # fmt: skip
    return low_SK


def add_low_rank(
    y_RO: torch.Tensor,
    x_RI: torch.Tensor,
    table_SE3: torch.Tensor,
    groups_3R: torch.Tensor,
    entry: int,
    ranks: int,
) -> None:
    """Add each group's adapter, of at most ``ranks`` ranks, to its rows of ``y``."""
    (rows, size), width = x_RI.shape, y_RO.shape[1]
    parts, num, most = triton.cdiv(size, _SPAN), table_SE3.shape[1], groups_3R.shape[1]
    low_SRK = torch.empty(parts, rows, ranks, device=x_RI.device)
    lanes, options = min(rows, _LANES), overlap(x_RI.device)
    _shrink[lanes, parts, ranks // GROUP_ROWS](
        x_RI, low_SRK, table_SE3, groups_3R, entry, rows,
        SIZE=size, NUM=num, MOST=most, RANKS=ranks, SPAN=_SPAN, STEP=_STEP, FEW=GROUP_ROWS, LANES=lanes,
        OVERLAP=options["OVERLAP"],  # it starts as usual itself, when ``x`` and ``y`` are complete
    )  # fmt: skip
    _expand[lanes, triton.cdiv(width, _WIDE)](
        y_RO, low_SRK, table_SE3, groups_3R, entry, rows,
        WIDTH=width, NUM=num, MOST=most, RANKS=ranks, PARTS=parts, WIDE=_WIDE, FEW=GROUP_ROWS, LANES=lanes,
        **options,
    )  # fmt: skip
