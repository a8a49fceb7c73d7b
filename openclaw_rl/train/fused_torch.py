"""What a decoder layer computes between its matrix products, forward and backward, in plain torch.

The reference for ``fused_triton``, which has the same functions, and what runs where Triton is missing. Sums
are in fp32; results have the dtype of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Heads:
    """How queries, keys and values share a row, and what is done to queries and keys."""

    num_q: int
    num_kv: int
    dim: int
    eps: float = 0.0
    q_norm_D: torch.Tensor | None = None
    k_norm_D: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return (self.num_q + 2 * self.num_kv) * self.dim


def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    x = x_TH.float()
    y: torch.Tensor = x * _inverse_length(x, eps) * weight_H.float()
    return y.to(x_TH.dtype)


def rms_norm_backward(
    grad_TH: torch.Tensor, x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float
) -> torch.Tensor:
    x, grad = x_TH.float(), grad_TH.float() * weight_H.float()
    scale = _inverse_length(x, eps)
    along = (grad * x).mean(-1, keepdim=True) * scale * scale
    return (scale * (grad - x * along)).to(x_TH.dtype)


def _inverse_length(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def silu_mul(gate_up_TF: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up_TF.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up_TF.dtype)


def silu_mul_backward(gate_up_TF: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of both halves; and the product itself, which the backward pass needs again."""
    gate, up = gate_up_TF.float().chunk(2, dim=-1)
    grad, sigmoid = grad.float(), torch.sigmoid(gate)
    silu = gate * sigmoid
    to_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    grads = torch.cat([to_gate, grad * silu], dim=-1)
    return grads.to(gate_up_TF.dtype), (silu * up).to(gate_up_TF.dtype)


def rotate_heads(
    qkv_TO: torch.Tensor, heads: Heads, cos_TD: torch.Tensor, sin_TD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of a row, each head normalised (if the model does that) and rotated."""
    q, k, _ = split_heads(qkv_TO, heads)
    rotated = []
    for x, weight in ((q, heads.q_norm_D), (k, heads.k_norm_D)):
        normed = x if weight is None else rms_norm(x, weight, heads.eps)
        turned = normed.float() * cos_TD.unsqueeze(1) + _turn(normed.float()) * sin_TD.unsqueeze(1)
        rotated.append(turned.to(qkv_TO.dtype))
    return rotated[0], rotated[1]


def rotate_heads_backward(
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    qkv_TO: torch.Tensor,
    heads: Heads,
    cos_TD: torch.Tensor,
    sin_TD: torch.Tensor,
) -> torch.Tensor:
    """From the gradients of queries, keys and values to that of the row they came from."""
    q, k, _ = split_heads(qkv_TO, heads)
    parts = []
    for grad, x, weight in ((grads[0], q, heads.q_norm_D), (grads[1], k, heads.k_norm_D)):
        grad = grad.float()
        back = grad * cos_TD.unsqueeze(1) - _turn(grad * sin_TD.unsqueeze(1))
        parts.append(back.to(x.dtype) if weight is None else rms_norm_backward(back, x, weight, heads.eps))
    return torch.cat([*parts, grads[2].to(qkv_TO.dtype)], dim=1).view(len(qkv_TO), -1)


def split_heads(qkv_TO: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = qkv_TO.view(len(qkv_TO), -1, heads.dim)
    q, k, v = rows.split([heads.num_q, heads.num_kv, heads.num_kv], dim=1)
    return q, k, v


def _turn(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
