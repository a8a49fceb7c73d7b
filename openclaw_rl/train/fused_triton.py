"""``fused_torch`` as one Triton kernel per function: each value is read and written once, sums in fp32.

Triton ships with torch's CUDA builds. This module is imported only where a GPU is used, and by its tests,
which run the kernels in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openclaw_rl.train.fused_torch import Heads

_WIDE = 1024
_HEAD_WARPS = 8


@triton.jit
def _norm(x, weight, y, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    is_real = at < SIZE
    values = tl.load(x + row * SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(values * values) / SIZE + eps)
    scaled = values * factor * tl.load(weight + at, mask=is_real, other=0.0).to(tl.float32)
    tl.store(y + row * SIZE + at, scaled.to(y.dtype.element_ty), mask=is_real)


@triton.jit
def _norm_backward(grad, x, weight, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    is_real = at < SIZE
    values = tl.load(x + row * SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    back = tl.load(grad + row * SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    back = back * tl.load(weight + at, mask=is_real, other=0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(values * values) / SIZE + eps)
    along = tl.sum(back * values) / SIZE * factor * factor
    result = factor * (back - values * along)
    tl.store(out + row * SIZE + at, result.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def _silu_mul(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = at < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    product = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + at, product.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def _silu_mul_backward(gate_up, grad, grads, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = at < SIZE
    both = row * 2 * SIZE + at
    gate = tl.load(gate_up + both, mask=is_real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + both + SIZE, mask=is_real, other=0.0).to(tl.float32)
    back = tl.load(grad + row * SIZE + at, mask=is_real, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-gate))
    silu = gate * sigmoid
    to_gate = back * up * sigmoid * (1 + gate * (1 - sigmoid))
    element = grads.dtype.element_ty
    tl.store(grads + both, to_gate.to(element), mask=is_real)
    tl.store(grads + both + SIZE, (back * silu).to(element), mask=is_real)
    tl.store(out + row * SIZE + at, (silu * up).to(element), mask=is_real)


@triton.jit
def _norm_weights(q_norm, k_norm, at, head, is_real, NUM_Q: tl.constexpr):
    place = at + head * 0
    weights = tl.load(q_norm + place, mask=is_real & (head < NUM_Q), other=0.0).to(tl.float32)
    return weights + tl.load(k_norm + place, mask=is_real & (head >= NUM_Q), other=0.0).to(tl.float32)


@triton.jit
def _rotate(
    qkv, q_norm, k_norm, cos, sin, q_out, k_out, eps,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """All query and key heads of one position. ``HALF`` is half of the dimension, padded."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    is_real = (head < NUM_Q + NUM_KV) & (at < DIM // 2)
    place = row * (NUM_Q + 2 * NUM_KV) * DIM + head * DIM + at
    first = tl.load(qkv + place, mask=is_real, other=0.0).to(tl.float32)
    second = tl.load(qkv + place + DIM // 2, mask=is_real, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = 1 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM + eps)[:, None]
        first *= factor * _norm_weights(q_norm, k_norm, at, head, is_real, NUM_Q)
        second *= factor * _norm_weights(q_norm, k_norm, at + DIM // 2, head, is_real, NUM_Q)
        # As in the model, where the norm is a layer of its own.
        first = first.to(qkv.dtype.element_ty).to(tl.float32)
        second = second.to(qkv.dtype.element_ty).to(tl.float32)
    angle = row * DIM + at
    is_inside = at < DIM // 2
    cos_1 = tl.load(cos + angle, mask=is_inside, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos + angle + DIM // 2, mask=is_inside, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin + angle, mask=is_inside, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin + angle + DIM // 2, mask=is_inside, other=0.0).to(tl.float32)
    element = q_out.dtype.element_ty
    turned_1 = (first * cos_1 - second * sin_1).to(element)
    turned_2 = (second * cos_2 + first * sin_2).to(element)
    to_q = q_out + row * NUM_Q * DIM + head * DIM + at
    is_q = is_real & (head < NUM_Q)
    tl.store(to_q, turned_1, mask=is_q)
    tl.store(to_q + DIM // 2, turned_2, mask=is_q)
    to_k = k_out + row * NUM_KV * DIM + (head - NUM_Q) * DIM + at
    is_k = is_real & (head >= NUM_Q)
    tl.store(to_k, turned_1, mask=is_k)
    tl.store(to_k + DIM // 2, turned_2, mask=is_k)


@triton.jit
def _rotate_backward(
    grad_q, grad_k, grad_v, qkv, q_norm, k_norm, cos, sin, out, eps,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """The whole row of one position; values pass through."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    is_inside = at < DIM // 2
    is_q = is_inside & (head < NUM_Q)
    is_k = is_inside & (head >= NUM_Q) & (head < NUM_Q + NUM_KV)
    is_v = is_inside & (head >= NUM_Q + NUM_KV) & (head < NUM_Q + 2 * NUM_KV)
    from_q = grad_q + row * NUM_Q * DIM + head * DIM + at
    from_k = grad_k + row * NUM_KV * DIM + (head - NUM_Q) * DIM + at
    from_v = grad_v + row * NUM_KV * DIM + (head - NUM_Q - NUM_KV) * DIM + at
    # Each element belongs to one of them; the others load 0.
    back_1 = tl.load(from_q, mask=is_q, other=0.0).to(tl.float32)
    back_1 += tl.load(from_k, mask=is_k, other=0.0).to(tl.float32)
    back_2 = tl.load(from_q + DIM // 2, mask=is_q, other=0.0).to(tl.float32)
    back_2 += tl.load(from_k + DIM // 2, mask=is_k, other=0.0).to(tl.float32)
    angle = row * DIM + at
    cos_1 = tl.load(cos + angle, mask=is_inside, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos + angle + DIM // 2, mask=is_inside, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin + angle, mask=is_inside, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin + angle + DIM // 2, mask=is_inside, other=0.0).to(tl.float32)
    turned_1 = back_1 * cos_1 + back_2 * sin_2
    turned_2 = back_2 * cos_2 - back_1 * sin_1
    place = row * (NUM_Q + 2 * NUM_KV) * DIM + head * DIM + at
    if HAS_NORM:
        is_normed = is_q | is_k
        first = tl.load(qkv + place, mask=is_normed, other=0.0).to(tl.float32)
        second = tl.load(qkv + place + DIM // 2, mask=is_normed, other=0.0).to(tl.float32)
        turned_1 *= _norm_weights(q_norm, k_norm, at, head, is_normed, NUM_Q)
        turned_2 *= _norm_weights(q_norm, k_norm, at + DIM // 2, head, is_normed, NUM_Q)
        factor = 1 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM + eps)[:, None]
        along = (tl.sum(turned_1 * first, 1) + tl.sum(turned_2 * second, 1))[:, None] / DIM * factor * factor
        turned_1 = factor * (turned_1 - first * along)
        turned_2 = factor * (turned_2 - second * along)
    turned_1 += tl.load(from_v, mask=is_v, other=0.0).to(tl.float32)
    turned_2 += tl.load(from_v + DIM // 2, mask=is_v, other=0.0).to(tl.float32)
    is_real = is_inside & (head < NUM_Q + 2 * NUM_KV)
    tl.store(out + place, turned_1.to(out.dtype.element_ty), mask=is_real)
    tl.store(out + place + DIM // 2, turned_2.to(out.dtype.element_ty), mask=is_real)


def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    rows, size = x_TH.shape
    y_TH = torch.empty_like(x_TH)
    _norm[(rows,)](x_TH, weight_H, y_TH, eps, SIZE=size, BLOCK=triton.next_power_of_2(size))
    return y_TH


def rms_norm_backward(
    grad_TH: torch.Tensor, x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float
) -> torch.Tensor:
    rows, size = x_TH.shape
    out_TH = torch.empty_like(x_TH)
    block = triton.next_power_of_2(size)
    _norm_backward[(rows,)](grad_TH, x_TH, weight_H, out_TH, eps, SIZE=size, BLOCK=block)
    return out_TH


def silu_mul(gate_up_TF: torch.Tensor) -> torch.Tensor:
    rows, size = gate_up_TF.shape[0], gate_up_TF.shape[1] // 2
    out = gate_up_TF.new_empty(rows, size)
    _silu_mul[(rows, triton.cdiv(size, _WIDE))](gate_up_TF, out, SIZE=size, BLOCK=_WIDE)
    return out


def silu_mul_backward(gate_up_TF: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, size = grad.shape
    grads_TF, out = torch.empty_like(gate_up_TF), torch.empty_like(grad)
    grid = (rows, triton.cdiv(size, _WIDE))
    _silu_mul_backward[grid](gate_up_TF, grad, grads_TF, out, SIZE=size, BLOCK=_WIDE)
    return grads_TF, out


def rotate_heads(
    qkv_TO: torch.Tensor, heads: Heads, cos_TD: torch.Tensor, sin_TD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = len(qkv_TO)
    q_TND = qkv_TO.new_empty(rows, heads.num_q, heads.dim)
    k_THD = qkv_TO.new_empty(rows, heads.num_kv, heads.dim)
    _rotate[(rows,)](
        qkv_TO, *_norms(heads, qkv_TO), cos_TD, sin_TD, q_TND, k_THD, heads.eps,
        **_sizes(heads, heads.num_q + heads.num_kv), num_warps=_HEAD_WARPS,
    )  # fmt: skip
    return q_TND, k_THD


def rotate_heads_backward(
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    qkv_TO: torch.Tensor,
    heads: Heads,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
) -> torch.Tensor:
    out_TO = torch.empty_like(qkv_TO)
    _rotate_backward[(len(qkv_TO),)](
        *(grad.contiguous() for grad in grads), qkv_TO, *_norms(heads, qkv_TO), cos_TD, sin_TD, out_TO,
        heads.eps, **_sizes(heads, heads.num_q + 2 * heads.num_kv), num_warps=_HEAD_WARPS,
    )  # fmt: skip
    return out_TO


def _norms(heads: Heads, absent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without norms, any tensor: it is not read."""
    if heads.q_norm_D is None or heads.k_norm_D is None:
        return absent, absent
    return heads.q_norm_D, heads.k_norm_D


def _sizes(heads: Heads, num_heads: int) -> dict[str, int | bool]:
    return {
        "NUM_Q": heads.num_q,
        "NUM_KV": heads.num_kv,
        "DIM": heads.dim,
        "HALF": triton.next_power_of_2(heads.dim // 2),
        "HEADS": triton.next_power_of_2(num_heads),
        "HAS_NORM": heads.q_norm_D is not None,
    }
