"""Triton kernels that sample one token of each row of logits where they are, on the GPU.

The vocabulary is read in blocks, each by a program of its own, and what the blocks found is combined per row.
A truncated distribution is cut at a logit: the highest one that leaves enough probability above it, found by
comparing with 16 candidates at a time. So nothing is sorted, and equal logits are kept or dropped together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 2048
_CANDIDATES = 16
#: Rounds of the search for the cut: it ends within a millionth of the interval in which it began.
_ROUNDS = 5


@triton.jit
def _read(logits, row, block, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    token = block * BLOCK + tl.arange(0, BLOCK)
    start = row.to(tl.int64) * VOCAB
    return tl.load(logits + start + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)


@triton.jit
def _is_cut(settings, row):
    """Whether the row has a top-p, min-p or top-k."""
    place = settings + row * 5
    return (tl.load(place + 2) < 1) | (tl.load(place + 3) > 0) | (tl.load(place + 4) > 0)


@triton.jit
def _scan(
    logits, settings, stats, top, top_ids,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, NUM: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """One block's largest logit, its weight raw and at the row's temperature, and its likeliest tokens."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    inverse = tl.load(settings + row * 5 + 1).to(tl.float32)
    value = _read(logits, row, block, VOCAB, BLOCK)
    token = block * BLOCK + tl.arange(0, BLOCK)
    largest = tl.max(value)
    place = stats + (row * 3) * NUM + block
    tl.store(place, largest)
    tl.store(place + NUM, tl.sum(tl.exp(value - largest)))
    tl.store(place + 2 * NUM, tl.sum(tl.exp((value - largest) * inverse)))
    for index in tl.static_range(TOP):
        best = tl.max(value)
        chosen = tl.min(tl.where(value == best, token, VOCAB))
        tl.store(top + (row * NUM + block) * TOP + index, best)
        tl.store(top_ids + (row * NUM + block) * TOP + index, chosen)
        value = tl.where(token == chosen, float("-inf"), value)


@triton.jit
def _combine(
    settings, stats, top, top_ids, state, masses, out, out_ids,
    VOCAB: tl.constexpr, NUM: tl.constexpr, NUMS: tl.constexpr, TOP: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One row's likeliest tokens, and where the search for its cut begins."""
    row = tl.program_id(0)
    inverse = tl.load(settings + row * 5 + 1)
    top_p = tl.load(settings + row * 5 + 2)
    min_p = tl.load(settings + row * 5 + 3)
    block = tl.arange(0, NUMS)
    place = stats + (row * 3) * NUM + block
    largest = tl.load(place, mask=block < NUM, other=float("-inf")).to(tl.float64)
    highest = tl.max(largest)
    raw = tl.load(place + NUM, mask=block < NUM, other=0.0).to(tl.float64)
    own = tl.load(place + 2 * NUM, mask=block < NUM, other=0.0).to(tl.float64)
    logsum = highest + tl.log(tl.sum(raw * tl.exp(largest - highest)))
    mass = own * tl.exp((largest - highest) * inverse)
    total = tl.sum(mass)
    tl.store(masses + row * NUM + block, mass, mask=block < NUM)
    top_k = tl.load(settings + row * 5 + 4)
    least = highest - float("inf")
    number = tl.arange(0, MANY)
    is_there = number < NUM * TOP
    value = tl.load(top + row * NUM * TOP + number, mask=is_there, other=float("-inf"))
    token = tl.load(top_ids + row * NUM * TOP + number, mask=is_there, other=VOCAB)
    for index in tl.static_range(TOP):
        best = tl.max(value)
        chosen = tl.min(tl.where(value == best, token, VOCAB))
        tl.store(out + row * (3 + 2 * TOP) + 3 + TOP + index, (best - logsum).to(tl.float32))
        tl.store(out_ids + row * (3 + 2 * TOP) + 3 + index, chosen)
        value = tl.where(token == chosen, float("-inf"), value)
        least = tl.where(index + 1 == top_k, best.to(tl.float64), least)
    # Tokens below this have less than 1 - top_p together, so the cut is above it.
    lowest = highest + tl.log(tl.maximum(1 - top_p, 1e-9) * total / VOCAB) / inverse
    if min_p > 0:
        lowest = highest + tl.log(min_p) / inverse
    tl.store(state + row * 5, highest)
    tl.store(state + row * 5 + 1, tl.where((top_k > 0) & (min_p <= 0), least, tl.maximum(lowest, least)))
    tl.store(state + row * 5 + 2, highest + 1e-3 / inverse)
    tl.store(state + row * 5 + 3, total)
    tl.store(state + row * 5 + 4, logsum)


@triton.jit
def _weigh(
    logits, settings, state, parts,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, NUM: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """How much weight of one block is above each candidate for the cut."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    if _is_cut(settings, row):
        inverse = tl.load(settings + row * 5 + 1).to(tl.float32)
        highest = tl.load(state + row * 5).to(tl.float32)
        low = tl.load(state + row * 5 + 1)
        step = (tl.load(state + row * 5 + 2) - low) / CANDIDATES
        value = _read(logits, row, block, VOCAB, BLOCK)
        weight = tl.exp((value - highest) * inverse)
        for index in tl.static_range(CANDIDATES):
            above = tl.where(value >= (low + step * index).to(tl.float32), weight, 0.0)
            tl.store(parts + (row * NUM + block) * CANDIDATES + index, tl.sum(above))


@triton.jit
def _narrow(
    settings, state, parts, is_first: tl.constexpr,
    NUM: tl.constexpr, NUMS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Continue between the last candidate that leaves enough above it and the next one."""
    row = tl.program_id(0)
    if _is_cut(settings, row):
        top_p = tl.load(settings + row * 5 + 2)
        block = tl.arange(0, NUMS)
        index = tl.arange(0, CANDIDATES)
        place = parts + (row * NUM + block[:, None]) * CANDIDATES + index[None, :]
        mass = tl.sum(tl.load(place, mask=(block < NUM)[:, None], other=0.0).to(tl.float64), axis=0)
        total = tl.load(state + row * 5 + 3)
        if is_first:
            # With a min-p or top-k, top-p is a share of what these leave.
            is_cut_before = tl.load(settings + row * 5 + 3) + tl.load(settings + row * 5 + 4) > 0
            total = tl.where(is_cut_before, tl.sum(tl.where(index == 0, mass, 0.0)), total)
            tl.store(state + row * 5 + 3, total)
        low = tl.load(state + row * 5 + 1)
        step = (tl.load(state + row * 5 + 2) - low) / CANDIDATES
        enough = tl.where(top_p < 1, top_p * total, float("inf"))
        kept = tl.max(tl.where(mass >= enough, index, 0))
        tl.store(state + row * 5 + 1, low + step * kept)
        tl.store(state + row * 5 + 2, low + step * (kept + 1))


@triton.jit
def _weight_of(logits, settings, state, row, block, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Unnormalised probabilities of one block's tokens, 0 below the cut."""
    inverse = tl.load(settings + row * 5 + 1).to(tl.float32)
    highest = tl.load(state + row * 5).to(tl.float32)
    cut = tl.where(_is_cut(settings, row), tl.load(state + row * 5 + 1).to(tl.float32), float("-inf"))
    value = _read(logits, row, block, VOCAB, BLOCK)
    return tl.where(value >= cut, tl.exp((value - highest) * inverse), 0.0)


@triton.jit
def _keep(
    logits, settings, state, masses, VOCAB: tl.constexpr, BLOCK: tl.constexpr, NUM: tl.constexpr
):  # fmt: skip
    """The weight that one block keeps."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    weight = _weight_of(logits, settings, state, row, block, VOCAB, BLOCK)
    tl.store(masses + row * NUM + block, tl.sum(weight).to(tl.float64))


@triton.jit
def _pick(
    logits, settings, state, masses, out, out_ids,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, NUM: tl.constexpr, NUMS: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """Invert one row's cumulative distribution: first the block, then the token in it."""
    row = tl.program_id(0)
    number = tl.arange(0, NUMS)
    mass = tl.load(masses + row * NUM + number, mask=number < NUM, other=0.0)
    total = tl.sum(mass)
    point = tl.load(settings + row * 5) * total
    until = tl.cumsum(mass, axis=0)
    # The first block that reaches the point; by rounding there may be none, and then it is the last.
    reached = tl.min(tl.where((until >= point) & (mass > 0), number, NUMS))
    last = tl.max(tl.where(mass > 0, number, 0))
    block = tl.minimum(reached, last)
    rest = (point - tl.sum(tl.where(number < block, mass, 0.0))).to(tl.float32)
    weight = _weight_of(logits, settings, state, row, block, VOCAB, BLOCK)
    place = tl.arange(0, BLOCK)
    reached = tl.min(tl.where((tl.cumsum(weight, axis=0) >= rest) & (weight > 0), place, BLOCK))
    last = tl.max(tl.where(weight > 0, place, 0))
    chosen = block * BLOCK + tl.minimum(reached, last)
    value = tl.load(logits + row.to(tl.int64) * VOCAB + chosen).to(tl.float64)
    highest = tl.load(state + row * 5)
    own = (value - highest) * tl.load(settings + row * 5 + 1) - tl.log(total)
    tl.store(out_ids + row * (3 + 2 * TOP), chosen)
    tl.store(out + row * (3 + 2 * TOP) + 1, (value - tl.load(state + row * 5 + 4)).to(tl.float32))
    tl.store(out + row * (3 + 2 * TOP) + 2, tl.minimum(own, 0.0).to(tl.float32))


def draw(logits_RV: torch.Tensor, settings_R5: torch.Tensor, top: int, is_cut: bool) -> torch.Tensor:
    """Sample a token of each row; launches kernels only, reads nothing back.

    ``settings``: a uniform number, 1 / temperature, top-p, min-p and top-k, which is at most ``top``.
    ``is_cut``: whether any row has one of the last three. Returns int32: token, its raw log-prob and the one
    it was sampled with (bits of fp32), the ids of the likeliest tokens, their raw log-probs (bits of fp32).
    """
    (rows, vocab), device = logits_RV.shape, logits_RV.device
    num = triton.cdiv(vocab, _BLOCK)
    nums, many = triton.next_power_of_2(num), triton.next_power_of_2(num * top)
    stats, likeliest = torch.empty(rows, 3, num, device=device), torch.empty(rows, num, top, device=device)
    likeliest_ids = torch.empty(rows, num, top, dtype=torch.int32, device=device)
    state, masses = (torch.empty(rows, size, dtype=torch.float64, device=device) for size in (5, num))
    out_ids = torch.empty(rows, 3 + 2 * top, dtype=torch.int32, device=device)
    out = out_ids.view(torch.float32)
    whole = {"VOCAB": vocab, "BLOCK": _BLOCK, "NUM": num, "num_warps": 8}
    _scan[rows, num](logits_RV, settings_R5, stats, likeliest, likeliest_ids, TOP=top, **whole)
    _combine[(rows,)](
        settings_R5, stats, likeliest, likeliest_ids, state, masses, out, out_ids,
        VOCAB=vocab, NUM=num, NUMS=nums, TOP=top, MANY=many,
    )  # fmt: skip
    if is_cut:
        parts = torch.empty(rows, num, _CANDIDATES, device=device)
        for number in range(_ROUNDS):
            _weigh[rows, num](logits_RV, settings_R5, state, parts, CANDIDATES=_CANDIDATES, **whole)
            _narrow[(rows,)](
                settings_R5, state, parts, number == 0, NUM=num, NUMS=nums, CANDIDATES=_CANDIDATES
            )  # fmt: skip
        _keep[rows, num](logits_RV, settings_R5, state, masses, **whole)
    _pick[(rows,)](logits_RV, settings_R5, state, masses, out, out_ids, NUMS=nums, TOP=top, **whole)
    return out_ids
