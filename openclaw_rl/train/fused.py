"""Decoder layers of Llama, Mistral, Qwen2 and Qwen3 for a LoRA step on a GPU.

A layer is four autograd functions instead of some fifty and keeps a fraction of the memory: what is
cheap to compute again (norms, rotations, the gate's product) is not kept. Parameters, their names and what is
saved stay those of transformers and PEFT; only a layer's ``forward`` is replaced. Base weights get no
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from openclaw_rl.packing import Packing
from openclaw_rl.train import fused_torch
from openclaw_rl.train.fused_torch import Heads, split_heads
from openclaw_rl.train.products import Group, adapter_gradients, input_gradient, multiply
from openclaw_rl.train.rows import Row, attend, attend_back

_LAYERS = {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}


@dataclass(frozen=True, slots=True)
class Norm:
    weight_H: torch.Tensor
    eps: float


@dataclass(slots=True)
class FusedLayer:
    """The parts of one layer, and how they are computed."""

    ops: ModuleType
    input_norm: Norm
    post_norm: Norm
    qkv: Group
    out: Group
    gate_up: Group
    down: Group
    heads: Heads
    scale: float
    packing: Packing
    rows: Rows
    keeps_mlp: bool = True
    """Whether the wide part of the MLP is kept for the backward pass, rather than multiplied again."""

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *_: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **others: Any,
    ) -> torch.Tensor:
        hidden_TH = hidden_states[0]
        cos_TD, sin_TD = (table[0].contiguous() for table in position_embeddings)
        row = self.rows.of(self.packing, hidden_TH.device)
        qkv_TO = _NormedProduct.apply(hidden_TH, self, *self.qkv.tensors())  # type: ignore[no-untyped-call]
        mixed_TO = _Attention.apply(qkv_TO, self, row, cos_TD, sin_TD)  # type: ignore[no-untyped-call]
        hidden_TH = _Product.apply(mixed_TO, hidden_TH, self.out, *self.out.tensors())  # type: ignore[no-untyped-call]
        tensors = (*self.gate_up.tensors(), *self.down.tensors())
        result: torch.Tensor = _Mlp.apply(hidden_TH, self, *tensors)  # type: ignore[no-untyped-call]
        return result.unsqueeze(0)


class Rows:
    """The row being run, described once for all layers."""

    def __init__(self) -> None:
        self._row: Row | None = None

    def of(self, packing: Packing, device: torch.device) -> Row:
        row = Row(tuple(packing.lengths), packing.shared, device)
        if self._row != row:
            self._row = row
        assert self._row is not None
        return self._row


# --- the functions ---------------------------------------------------------------------------


class _NormedProduct(torch.autograd.Function):
    """Norm, then queries, keys and values."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: torch.Tensor, layer: FusedLayer, *tensors: torch.Tensor) -> torch.Tensor:
        norm = layer.input_norm
        normed_TH = layer.ops.rms_norm(hidden_TH, norm.weight_H, norm.eps)
        factors = layer.qkv.factors(tensors, hidden_TH.dtype)
        y_TO, inner_TR = multiply(normed_TH, layer.qkv, factors)
        ctx.layer, ctx.tensors = layer, tensors
        ctx.save_for_backward(hidden_TH, inner_TR)
        return y_TO

    @staticmethod
    def backward(ctx: Any, grad_TO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_TH, inner_TR = ctx.saved_tensors
        layer, tensors, norm = ctx.layer, ctx.tensors, ctx.layer.input_norm
        factors = layer.qkv.factors(tensors, hidden_TH.dtype)
        # The first layer's input is the frozen embedding.
        to_normed, back_TR = input_gradient(grad_TO, layer.qkv, factors, ctx.needs_input_grad[0])
        normed_TH = layer.ops.rms_norm(hidden_TH, norm.weight_H, norm.eps)
        grads = adapter_gradients(grad_TO, back_TR, normed_TH, inner_TR, layer.qkv, tensors)
        if to_normed is None:
            return (None, None, *grads)
        return (layer.ops.rms_norm_backward(to_normed, hidden_TH, norm.weight_H, norm.eps), None, *grads)


class _Attention(torch.autograd.Function):
    """Norms and rotation of the heads, then attention; queries and keys are rotated again, not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_TO: torch.Tensor,
        layer: FusedLayer,
        row: Row,
        cos_TD: torch.Tensor,
        sin_TD: torch.Tensor,
    ) -> torch.Tensor:
        q, k = layer.ops.rotate_heads(qkv_TO, layer.heads, cos_TD, sin_TD)
        out_TND, saved = attend(q, k, split_heads(qkv_TO, layer.heads)[2], row, layer.scale)
        ctx.layer, ctx.row = layer, row
        ctx.save_for_backward(qkv_TO, cos_TD, sin_TD, out_TND, *saved)
        return out_TND.reshape(len(qkv_TO), -1)

    @staticmethod
    def backward(ctx: Any, grad_TO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv_TO, cos_TD, sin_TD, out_TND, *saved = ctx.saved_tensors
        layer, heads = ctx.layer, ctx.layer.heads
        q, k = layer.ops.rotate_heads(qkv_TO, heads, cos_TD, sin_TD)
        v = split_heads(qkv_TO, heads)[2]
        grads = attend_back(grad_TO.view_as(out_TND), (q, k, v), out_TND, saved, ctx.row, layer.scale)
        to_qkv = layer.ops.rotate_heads_backward(grads, qkv_TO, heads, cos_TD, sin_TD)
        return to_qkv, None, None, None, None


class _Product(torch.autograd.Function):
    """A group's product added to ``onto``."""

    @staticmethod
    def forward(
        ctx: Any, x_TI: torch.Tensor, onto_TO: torch.Tensor, group: Group, *tensors: torch.Tensor
    ) -> torch.Tensor:
        y_TO, inner_TR = multiply(x_TI, group, group.factors(tensors, x_TI.dtype), onto_TO)
        ctx.group, ctx.tensors = group, tensors
        ctx.save_for_backward(x_TI, inner_TR)
        return y_TO

    @staticmethod
    def backward(ctx: Any, grad_TO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_TI, inner_TR = ctx.saved_tensors
        factors = ctx.group.factors(ctx.tensors, x_TI.dtype)
        to_x, back_TR = input_gradient(grad_TO, ctx.group, factors)
        grads = adapter_gradients(grad_TO, back_TR, x_TI, inner_TR, ctx.group, ctx.tensors)
        return (to_x, grad_TO, None, *grads)


class _Mlp(torch.autograd.Function):
    """Norm, gate, and the two products around it, added to the input."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: torch.Tensor, layer: FusedLayer, *tensors: torch.Tensor) -> torch.Tensor:
        split = len(layer.gate_up.tensors())
        wide_TF, inner_TR = _widen(hidden_TH, layer, tensors[:split])
        factors = layer.down.factors(tensors[split:], hidden_TH.dtype)
        y_TH, down_TR = multiply(layer.ops.silu_mul(wide_TF), layer.down, factors, hidden_TH)
        ctx.layer, ctx.split, ctx.tensors = layer, split, tensors
        kept = (wide_TF, inner_TR) if layer.keeps_mlp else (None, None)
        ctx.save_for_backward(hidden_TH, down_TR, *kept)
        return y_TH

    @staticmethod
    def backward(ctx: Any, grad_TH: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_TH, down_TR, wide_TF, inner_TR = ctx.saved_tensors
        layer, norm, ops = ctx.layer, ctx.layer.post_norm, ctx.layer.ops
        for_wide, for_down = ctx.tensors[: ctx.split], ctx.tensors[ctx.split :]
        if wide_TF is None:
            wide_TF, inner_TR = _widen(hidden_TH, layer, for_wide)
        down_factors = layer.down.factors(for_down, grad_TH.dtype)
        to_product, down_back = input_gradient(grad_TH, layer.down, down_factors)
        to_wide, product = ops.silu_mul_backward(wide_TF, to_product)
        down_grads = adapter_gradients(grad_TH, down_back, product, down_TR, layer.down, for_down)
        del wide_TF, to_product, product  # the widest tensors of a layer
        wide_factors = layer.gate_up.factors(for_wide, grad_TH.dtype)
        to_normed, wide_back = input_gradient(to_wide, layer.gate_up, wide_factors)
        normed_TH = ops.rms_norm(hidden_TH, norm.weight_H, norm.eps)
        wide_grads = adapter_gradients(to_wide, wide_back, normed_TH, inner_TR, layer.gate_up, for_wide)
        to_hidden = ops.rms_norm_backward(to_normed, hidden_TH, norm.weight_H, norm.eps)
        return (to_hidden.add_(grad_TH), None, *wide_grads, *down_grads)


def _widen(
    hidden_TH: torch.Tensor, layer: FusedLayer, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    norm = layer.post_norm
    normed_TH = layer.ops.rms_norm(hidden_TH, norm.weight_H, norm.eps)
    return multiply(normed_TH, layer.gate_up, layer.gate_up.factors(tensors, hidden_TH.dtype))


# --- attaching -------------------------------------------------------------------------------


def fuse(decoder: Any, packing: Packing) -> list[FusedLayer]:
    """Replace the layers' forward passes; nothing happens, and the list is empty, for other families."""
    if not all(map(_is_known, decoder.layers)):
        return []
    rows, ops = Rows(), _ops(next(decoder.parameters()).device)
    fused = [_fused(layer, packing, rows, ops) for layer in decoder.layers]
    for layer, replacement in zip(decoder.layers, fused, strict=True):
        layer.forward = replacement
    return fused


def unfuse(decoder: Any) -> None:
    for layer in decoder.layers:
        del layer.forward


def _ops(device: torch.device) -> ModuleType:
    if device.type != "cuda":
        return fused_torch
    try:
        from openclaw_rl.train import fused_triton
    except ImportError:
        return fused_torch
    return fused_triton


def _is_known(layer: Any) -> bool:
    return (
        type(layer).__name__ in _LAYERS
        and getattr(layer.self_attn, "sliding_window", None) is None
        and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and not any(p.requires_grad for p in layer.parameters() if p.dim() == 1)
    )


def _fused(layer: Any, packing: Packing, rows: Rows, ops: ModuleType) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    weights = [None if norm is None else norm.weight.detach() for norm in norms]
    return FusedLayer(
        ops=ops,
        input_norm=_norm(layer.input_layernorm),
        post_norm=_norm(layer.post_attention_layernorm),
        qkv=Group([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=Group([attention.o_proj]),
        gate_up=Group([mlp.gate_proj, mlp.up_proj]),
        down=Group([mlp.down_proj]),
        heads=Heads(
            attention.q_proj.out_features // attention.head_dim,
            attention.k_proj.out_features // attention.head_dim,
            attention.head_dim,
            0.0 if norms[0] is None else norms[0].variance_epsilon,
            *weights,
        ),
        scale=attention.scaling,
        packing=packing,
        rows=rows,
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)
