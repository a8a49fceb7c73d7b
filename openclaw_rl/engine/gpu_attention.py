"""Attention of a decoding step on a GPU, as one Triton kernel; for prompts, what precedes attention.

It looks up the address of each row's keys and values in small tables on the device. So only the number of
rows is fixed, and a step can be recorded once and replayed for any mix of sequences, lengths and adapters
(``graphs.py``).

Triton ships with torch's CUDA builds. This module is imported only where a GPU is used, and by its tests,
which run the kernels in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openclaw_rl.engine.gpu_products import overlap

#: (rows of a step, parts into which a sequence's keys are split): each part is processed by its own program,
#: and there should be a few programs per processor of the card.
_SPLITS = ((4, 16), (16, 8), (64, 4))
#: Keys processed at a time, and how many such blocks are read ahead.
_BLOCK = 32
_STAGES = 3
#: By the bytes of a number.
_WARPS = {2: 2, 4: 4}
#: The fewest rows that a product of Triton's takes.
_LEAST_DOT = 16
_LOG2_E = 1.4426950408889634


@triton.jit
def _turned(
    heads, cos, sin, norms, position, eps, is_real, DIM: tl.constexpr, HAS_NORM: tl.constexpr
):  # fmt: skip
    """Heads of one row, a line each, normalised and rotated to their position."""
    dim = tl.arange(0, DIM)
    swapped = (dim + DIM // 2) % DIM
    own = tl.load(heads[:, None] + dim[None, :], mask=is_real[:, None], other=0.0).to(tl.float32)
    other = tl.load(heads[:, None] + swapped[None, :], mask=is_real[:, None], other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = 1 / tl.sqrt(tl.sum(own * own, axis=1) / DIM + eps)
        own = own * factor[:, None] * tl.load(norms + dim).to(tl.float32)[None, :]
        other = other * factor[:, None] * tl.load(norms + swapped).to(tl.float32)[None, :]
    turn = position * DIM + dim
    # The first half's sign is in the sine table.
    return own * tl.load(cos + turn).to(tl.float32) + other * tl.load(sin + turn).to(tl.float32)


@triton.jit(do_not_specialize=["layer"])
def _attend(
    qkv, cos, sin, norms, cache_R, capacity_R, length_R, part, weight, finished, out, layer, eps, scale,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
    HAS_NORM: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Query heads that share a key head, over one part of a row's keys; the last part combines all.

    The first part also stores the new token's key and value, and starts with them.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    element = out.dtype.element_ty
    length = tl.load(length_R + row)
    capacity = tl.load(capacity_R + row)
    # Without the hint, every load is of one element.
    keys = tl.multiple_of(tl.load(cache_R + row).to(tl.pointer_type(element)), 16)
    keys += (layer * 2 * NUM_KV + head) * capacity * DIM
    values = keys + NUM_KV * capacity * DIM
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    member = tl.arange(0, PADDED)
    dim = tl.arange(0, DIM)
    is_real = member < GROUP
    heads = qkv + row * (NUM_Q + 2 * NUM_KV) * DIM
    queries = heads + (head * GROUP + member) * DIM
    query = _turned(queries, cos, sin, norms, length, eps, is_real, DIM, HAS_NORM).to(element)
    one = tl.arange(0, 1)
    key_heads = heads + (NUM_Q + head + one) * DIM
    new_key = _turned(key_heads, cos, sin, norms + DIM, length, eps, one == 0, DIM, HAS_NORM).to(element)
    new_value = tl.load(heads + (NUM_Q + NUM_KV + head) * DIM + dim)
    is_first = split == 0
    new = length * DIM + dim
    is_stored = dim < tl.where(is_first, DIM, 0)
    tl.store(keys + new[None, :], new_key, mask=is_stored[None, :])
    tl.store(values + new, new_value, mask=is_stored)
    own_score = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), axis=1) * scale
    largest = tl.where(is_first, own_score, float("-inf"))
    total = tl.where(is_first, 1.0, 0.0) + tl.zeros([PADDED], tl.float32)
    result = tl.where(is_first, new_value.to(tl.float32), 0.0)[None, :] + tl.zeros([PADDED, DIM], tl.float32)
    each = tl.cdiv(tl.cdiv(length, SPLIT), BLOCK) * BLOCK
    end = tl.minimum(split * each + each, length)
    result, largest, total = _read(
        query, keys, values, split * each, end, scale, result, largest, total, DIM, BLOCK, STAGES
    )
    mine = row * NUM_Q + head * GROUP + member
    place = mine[:, None] * DIM + dim[None, :]
    if SPLIT == 1:
        tl.store(out + place, (result / total[:, None]).to(element), mask=is_real[:, None])
    else:
        _store_part(part, weight, result, largest, total, mine * SPLIT + split, is_real, DIM)
        tl.debug_barrier()  # all threads have written before one of them counts this part as done
        counter = finished + row * NUM_KV + head
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT - 1:
            _combine(part, weight, out, mine, place, is_real, DIM, PADDED, SPLIT)
            tl.store(counter, 0)


@triton.jit
def _read(
    query, keys, values, start, end, scale, result, largest, total,
    DIM: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the keys and values from ``start`` to ``end`` to a sum, its largest score and its total weight."""
    dim = tl.arange(0, DIM)
    for at in tl.range(start, end, BLOCK, num_stages=STAGES):
        token = at + tl.arange(0, BLOCK)
        is_there = token < end
        key = tl.load(keys + token[None, :] * DIM + dim[:, None], mask=is_there[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(is_there[None, :], score, float("-inf"))
        now = tl.maximum(largest, tl.max(score, axis=1))
        before = tl.exp2(largest - now)
        share = tl.exp2(score - now[:, None])
        value = tl.load(values + token[:, None] * DIM + dim[None, :], mask=is_there[:, None], other=0.0)
        result = tl.dot(share.to(value.dtype), value, result * before[:, None], input_precision="ieee")
        total = total * before + tl.sum(share, axis=1)
        largest = now
    return result, largest, total


@triton.jit
def _store_part(part, weight, result, largest, total, slot, is_real, DIM: tl.constexpr):
    tl.store(part + slot[:, None] * DIM + tl.arange(0, DIM)[None, :], result, mask=is_real[:, None])
    tl.store(weight + 2 * slot, largest, mask=is_real)
    tl.store(weight + 2 * slot + 1, total, mask=is_real)


@triton.jit
def _combine(
    part, weight, out, mine, place, is_real, DIM: tl.constexpr, PADDED: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """Combine the parts of some query heads into their attention outputs."""
    dim = tl.arange(0, DIM)
    split = tl.arange(0, SPLIT)
    slot = mine[:, None] * SPLIT + split[None, :]
    largest = tl.load(weight + 2 * slot, mask=is_real[:, None], other=0.0, cache_modifier=".cg")
    highest = tl.max(largest, axis=1)
    total = tl.load(weight + 2 * slot + 1, mask=is_real[:, None], other=1.0, cache_modifier=".cg")
    total = tl.sum(total * tl.exp2(largest - highest[:, None]), axis=1)
    result = tl.zeros([PADDED, DIM], tl.float32)
    for other in tl.static_range(SPLIT):
        slot = mine * SPLIT + other
        largest = tl.load(weight + 2 * slot, mask=is_real, other=0.0, cache_modifier=".cg")
        ours = part + slot[:, None] * DIM + dim[None, :]
        value = tl.load(ours, mask=is_real[:, None], other=0.0, cache_modifier=".cg")
        result += value * tl.exp2(largest - highest)[:, None]
    tl.store(out + place, (result / total[:, None]).to(out.dtype.element_ty), mask=is_real[:, None])


@triton.jit(do_not_specialize=["layer"])
def _place(
    qkv, out, cos, sin, norms, cache_R, capacity_R, length_R, layer, eps,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, PADDED_Q: tl.constexpr,
    PADDED_KV: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate one token's heads; queries go to ``out``, keys and values to its cache."""
    row = tl.program_id(0).to(tl.int64)
    element = out.dtype.element_ty
    length = tl.load(length_R + row)
    capacity = tl.load(capacity_R + row)
    dim = tl.arange(0, DIM)
    heads = qkv + row * (NUM_Q + 2 * NUM_KV) * DIM
    head = tl.arange(0, PADDED_Q)
    query = _turned(heads + head * DIM, cos, sin, norms, length, eps, head < NUM_Q, DIM, HAS_NORM)
    place = (row * NUM_Q + head[:, None]) * DIM + dim[None, :]
    tl.store(out + place, query.to(element), mask=(head < NUM_Q)[:, None])
    head = tl.arange(0, PADDED_KV)
    is_real = head < NUM_KV
    key = _turned(heads + (NUM_Q + head) * DIM, cos, sin, norms + DIM, length, eps, is_real, DIM, HAS_NORM)
    keys = tl.multiple_of(tl.load(cache_R + row).to(tl.pointer_type(element)), 16)
    place = ((layer * 2 * NUM_KV + head[:, None]) * capacity + length) * DIM + dim[None, :]
    tl.store(keys + place, key.to(element), mask=is_real[:, None])
    source = heads + (NUM_Q + NUM_KV + head[:, None]) * DIM + dim[None, :]
    value = tl.load(source, mask=is_real[:, None], other=0.0)
    tl.store(keys + place + NUM_KV * capacity * DIM, value, mask=is_real[:, None])


class Attention:
    """Keys, values and attention of one new token per row."""

    def __init__(self, rows: int, num_q: int, num_kv: int, dim: int, like: torch.Tensor) -> None:
        self.num_q, self.num_kv, self.dim = num_q, num_kv, dim
        self._out = like.new_empty(rows, num_q * dim)
        self._part = torch.empty(rows, num_q, _SPLITS[0][1], dim, device=like.device)
        self._weight = torch.empty(rows, num_q, _SPLITS[0][1], 2, device=like.device)
        self._finished = torch.zeros(rows, num_kv, dtype=torch.int32, device=like.device)

    def __call__(
        self,
        qkv_RO: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        norms_2D: torch.Tensor | None,
        eps: float,
        where: BatchRows,
        layer: int,
    ) -> torch.Tensor:
        rows, group = qkv_RO.shape[0], self.num_q // self.num_kv
        splits = next(count for most, count in _SPLITS if rows <= most)
        _attend[rows, self.num_kv, splits](
            qkv_RO, *rope, qkv_RO if norms_2D is None else norms_2D,
            where.cache_R, where.capacity_R, where.length_R,
            self._part, self._weight, self._finished, self._out, layer, eps, self.dim**-0.5 * _LOG2_E,
            NUM_Q=self.num_q, NUM_KV=self.num_kv, DIM=self.dim, GROUP=group,
            PADDED=max(_LEAST_DOT, triton.next_power_of_2(group)), HAS_NORM=norms_2D is not None,
            SPLIT=splits, BLOCK=_BLOCK, STAGES=_STAGES,
            num_warps=_WARPS[qkv_RO.element_size()], **overlap(qkv_RO.device),
        )  # fmt: skip
        return self._out[:rows]


def place_heads(
    qkv_RO: torch.Tensor,
    heads: tuple[int, int, int],
    rope: tuple[torch.Tensor, torch.Tensor],
    norms_2D: torch.Tensor | None,
    eps: float,
    where_3R: torch.Tensor,
    layer: int,
) -> torch.Tensor:
    """Of many tokens, store keys and values and return the queries.

    ``heads``: queries, keys, size. ``where``: position, cache address and capacity of each token.
    """
    num_q, num_kv, dim = heads
    out_RND = qkv_RO.new_empty(qkv_RO.shape[0], num_q, dim)
    length_R, cache_R, capacity_R = where_3R.unbind(0)
    _place[(qkv_RO.shape[0],)](
        qkv_RO, out_RND, *rope, qkv_RO if norms_2D is None else norms_2D, cache_R, capacity_R, length_R,
        layer, eps, NUM_Q=num_q, NUM_KV=num_kv, DIM=dim, PADDED_Q=triton.next_power_of_2(num_q),
        PADDED_KV=triton.next_power_of_2(num_kv), HAS_NORM=norms_2D is not None,
    )  # fmt: skip
    return out_RND


class BatchRows:
    """Per row of the step: token, position, cache address and capacity, adapter slot (-1: none).

    Then per group of neighbouring rows with the same adapter: its slot (-1: none), first row and end.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.all_8R = torch.zeros(8, rows, dtype=torch.int64, device=device)
        self.ids_R, self.length_R, self.cache_R, self.capacity_R, self.slot_R = self.all_8R[:5].unbind(0)
        self.groups_3R = self.all_8R[5:]
