"""What a decoding step computes between its matrix products on a GPU: five Triton kernels.

They look up the addresses of each row's keys, values and adapter in small tables on the device. So only the
number of rows is fixed, and a step can be recorded once and replayed for any mix of sequences, lengths and
adapters (``graphs.py``).

Triton ships with torch's CUDA builds. This module is imported only where a GPU is used, and by its tests,
which run the kernels in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Parts into which a sequence's keys are split; each is processed by its own program.
SPLITS = 16
_BLOCK = 32
_WIDE = 512


@triton.jit
def _append(
    qkv, q_out, cos, sin, norms, cache_R, capacity_R, length_R, layer, eps,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate one head of one row; queries go to ``q_out``, keys and values to the cache."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(length_R + row)
    half = tl.arange(0, DIM // 2)
    source = qkv + (row * (NUM_Q + 2 * NUM_KV) + head) * DIM
    first = tl.load(source + half).to(tl.float32)
    second = tl.load(source + DIM // 2 + half).to(tl.float32)
    if head < NUM_Q + NUM_KV:
        if HAS_NORM:
            weight = norms + tl.where(head < NUM_Q, 0, DIM)
            mean = (tl.sum(first * first) + tl.sum(second * second)) / DIM
            factor = 1 / tl.sqrt(mean + eps)
            first = first * factor * tl.load(weight + half).to(tl.float32)
            second = second * factor * tl.load(weight + DIM // 2 + half).to(tl.float32)
        place = length * DIM + half
        rotated = first * tl.load(cos + place).to(tl.float32) + second * tl.load(sin + place).to(tl.float32)
        place += DIM // 2
        second = second * tl.load(cos + place).to(tl.float32) + first * tl.load(sin + place).to(tl.float32)
        first = rotated
    element = q_out.dtype.element_ty
    if head < NUM_Q:
        target = q_out + (row * NUM_Q + head) * DIM
    else:
        cache = tl.load(cache_R + row).to(tl.pointer_type(element))
        which = layer * 2 * NUM_KV + head - NUM_Q
        target = cache + (which * tl.load(capacity_R + row) + length) * DIM
    tl.store(target + half, first.to(element))
    tl.store(target + DIM // 2 + half, second.to(element))


@triton.jit
def _attend(
    q, cache_R, capacity_R, length_R, part, weight, layer, scale,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
    PADDED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Query heads that share a key head, over one part of a row's keys: sum, largest score, total weight."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(length_R + row) + 1
    capacity = tl.load(capacity_R + row)
    each = tl.cdiv(tl.cdiv(length, SPLIT), BLOCK) * BLOCK
    start = split * each
    end = tl.minimum(start + each, length)
    member = tl.arange(0, PADDED)
    dim = tl.arange(0, DIM)
    mine = row * NUM_Q + head * GROUP + member
    is_real = member < GROUP
    query = tl.load(q + mine[:, None] * DIM + dim[None, :], mask=is_real[:, None], other=0.0)
    query = query.to(tl.float32) * scale
    keys = tl.load(cache_R + row).to(tl.pointer_type(q.dtype.element_ty))
    keys += (layer * 2 * NUM_KV + head) * capacity * DIM
    values = keys + NUM_KV * capacity * DIM
    largest = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    result = tl.zeros([PADDED, DIM], tl.float32)
    for at in range(start, end, BLOCK):
        token = at + tl.arange(0, BLOCK)
        is_there = token < end
        place = token[:, None] * DIM + dim[None, :]
        key = tl.load(keys + place, mask=is_there[:, None], other=0.0).to(tl.float32)
        score = tl.sum(query[:, None, :] * key[None, :, :], axis=2)
        score = tl.where(is_there[None, :], score, float("-inf"))
        now = tl.maximum(largest, tl.max(score, axis=1))
        before = tl.exp(largest - now)
        share = tl.exp(score - now[:, None])
        value = tl.load(values + place, mask=is_there[:, None], other=0.0).to(tl.float32)
        result = result * before[:, None] + tl.sum(share[:, :, None] * value[None, :, :], axis=1)
        total = total * before + tl.sum(share, axis=1)
        largest = now
    slot = mine * SPLIT + split
    tl.store(part + slot[:, None] * DIM + dim[None, :], result, mask=is_real[:, None])
    tl.store(weight + 2 * slot, largest, mask=is_real)
    tl.store(weight + 2 * slot + 1, total, mask=is_real)


@triton.jit
def _combine(part, weight, out, DIM: tl.constexpr, SPLIT: tl.constexpr):
    """Combine the parts of one query head into its attention output."""
    head = tl.program_id(0).to(tl.int64)
    split = head * SPLIT + tl.arange(0, SPLIT)
    dim = tl.arange(0, DIM)
    largest = tl.load(weight + 2 * split)
    share = tl.exp(largest - tl.max(largest))
    total = tl.sum(share * tl.load(weight + 2 * split + 1))
    result = tl.sum(tl.load(part + split[:, None] * DIM + dim[None, :]) * share[:, None], axis=0)
    tl.store(out + head * DIM + dim, (result / total).to(out.dtype.element_ty))


@triton.jit
def _shrink(x, low, table, slot_R, entry, size, NUM: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """One rank of one row: its input times a row of its adapter's A."""
    row = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1)
    slot = tl.load(slot_R + row)
    if slot >= 0:
        item = table + (slot * NUM + entry) * 3
        if rank < tl.load(item + 2):
            a = tl.load(item).to(tl.pointer_type(x.dtype.element_ty)) + rank * size
            total = tl.zeros([BLOCK], tl.float32)
            for at in range(0, size, BLOCK):
                column = at + tl.arange(0, BLOCK)
                is_there = column < size
                left = tl.load(x + row * size + column, mask=is_there, other=0.0).to(tl.float32)
                total += left * tl.load(a + column, mask=is_there, other=0.0).to(tl.float32)
            tl.store(low + row * RANKS + rank, tl.sum(total))


@triton.jit
def _expand(y, low, table, slot_R, entry, width, NUM: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Add one row's ranks times its adapter's B to a block of its output."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_R + row)
    if slot >= 0:
        item = table + (slot * NUM + entry) * 3
        ranks = tl.load(item + 2)
        b = tl.load(item + 1).to(tl.pointer_type(y.dtype.element_ty))
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_there = column < width
        total = tl.load(y + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        for rank in range(0, ranks):
            left = tl.load(low + row * RANKS + rank)
            total += left * tl.load(b + rank * width + column, mask=is_there, other=0.0).to(tl.float32)
        tl.store(y + row * width + column, total.to(y.dtype.element_ty), mask=is_there)


class Attention:
    """Keys, values and attention of one new token per row."""

    def __init__(self, rows: int, num_q: int, num_kv: int, dim: int, like: torch.Tensor) -> None:
        self.num_q, self.num_kv, self.dim = num_q, num_kv, dim
        self._q = like.new_empty(rows, num_q, dim)
        self._out = like.new_empty(rows, num_q * dim)
        self._part = torch.empty(rows, num_q, SPLITS, dim, device=like.device)
        self._weight = torch.empty(rows, num_q, SPLITS, 2, device=like.device)

    def __call__(
        self,
        qkv_RO: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        norms_2D: torch.Tensor | None,
        eps: float,
        where: BatchRows,
        layer: int,
    ) -> torch.Tensor:
        rows, places = qkv_RO.shape[0], (where.cache_R, where.capacity_R, where.length_R)
        heads = {"NUM_Q": self.num_q, "NUM_KV": self.num_kv, "DIM": self.dim}
        has_norm = norms_2D is not None
        _append[rows, self.num_q + 2 * self.num_kv](
            qkv_RO, self._q, *rope, norms_2D if has_norm else qkv_RO, *places, layer, eps,
            **heads, HAS_NORM=has_norm, num_warps=1,
        )  # fmt: skip
        group = self.num_q // self.num_kv
        _attend[rows, self.num_kv, SPLITS](
            self._q, *places, self._part, self._weight, layer, self.dim**-0.5,
            **heads, GROUP=group, PADDED=triton.next_power_of_2(group), SPLIT=SPLITS, BLOCK=_BLOCK,
        )  # fmt: skip
        _combine[(rows * self.num_q,)](self._part, self._weight, self._out, DIM=self.dim, SPLIT=SPLITS)
        return self._out[:rows]


class BatchRows:
    """Per row of the step: token, position, cache address and capacity, adapter slot (-1: none)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.all_5R = torch.zeros(5, rows, dtype=torch.int64, device=device)
        self.ids_R, self.length_R, self.cache_R, self.capacity_R, self.slot_R = self.all_5R.unbind(0)


def add_low_rank(
    y_RO: torch.Tensor,
    x_RI: torch.Tensor,
    low_RK: torch.Tensor,
    table_SE3: torch.Tensor,
    slot_R: torch.Tensor,
    entry: int,
    ranks: int,
) -> None:
    """``y += (x @ a.T) @ b`` with each row's own ``a`` and ``b``, of at most ``ranks`` ranks."""
    (rows, size), width, num = x_RI.shape, y_RO.shape[1], table_SE3.shape[1]
    shared = {"NUM": num, "RANKS": low_RK.shape[1], "BLOCK": _WIDE}
    _shrink[rows, ranks](x_RI, low_RK, table_SE3, slot_R, entry, size, **shared)
    _expand[rows, triton.cdiv(width, _WIDE)](y_RO, low_RK, table_SE3, slot_R, entry, width, **shared)
