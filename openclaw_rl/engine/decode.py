"""The pass of a pure decoding step, one new token per sequence, with native operators.

The same arithmetic as ``Decoder.forward``, in a tenth of the operators: what a layer does between its four
products are four calls into ``native.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from openclaw_rl.engine.native import DecodeStep, Native, Out

if TYPE_CHECKING:
    from openclaw_rl.engine.lora import Adapter
    from openclaw_rl.engine.model import Chunk, Decoder, Layer

AdapterGroups = Sequence[tuple[slice, "Adapter"]]


class NativeDecode:
    """Runs decoding steps of one decoder."""

    def __init__(self, decoder: Decoder, native: Native) -> None:
        self._decoder, self._native = decoder, native

    @staticmethod
    def suits(chunks: Sequence[Chunk]) -> bool:
        return all(len(chunk.token_ids) == 1 and chunk.hidden_layer is None for chunk in chunks)

    def __call__(
        self, hidden_RI: torch.Tensor, chunks: Sequence[Chunk], groups: AdapterGroups
    ) -> torch.Tensor:
        """From the tokens' embeddings, which are overwritten, to the last layer's state of each row."""
        decoder, native = self._decoder, self._native
        step = self._step(chunks)
        normed, attended, gated = (
            self._buffer(projection, len(chunks), keep_fp32=bool(groups))
            for projection in ("qkv", "o", "down")
        )
        delta = None
        for index, layer in enumerate(decoder.layers):
            if layer.q_norm is not None and layer.k_norm is not None:
                step.use_norms(layer.q_norm.weight, layer.k_norm.weight)
            native.add_norm(hidden_RI, delta, layer.input_norm.weight, layer.input_norm.eps, normed)
            native.attend(step, self._project(layer, index, "qkv", normed, groups), index, attended)
            delta = self._project(layer, index, "o", attended, groups)
            native.add_norm(hidden_RI, delta, layer.post_norm.weight, layer.post_norm.eps, normed)
            native.gate(self._project(layer, index, "gate_up", normed, groups), gated)
            delta = self._project(layer, index, "down", gated, groups)
        assert delta is not None
        return hidden_RI.add_(delta)

    def _step(self, chunks: Sequence[Chunk]) -> DecodeStep:
        shape = self._decoder.shape
        caches = [chunk.cache for chunk in chunks]
        cos_RD, sin_RD = self._decoder.rope([cache.length for cache in caches])
        return DecodeStep(caches, cos_RD, sin_RD, shape.num_heads, shape.num_kv_heads, shape.norm_eps)

    def _buffer(self, projection: str, rows: int, *, keep_fp32: bool) -> Out:
        """The input of a projection, in the type its product takes and for adapters in full."""
        is_bf16 = self._decoder.layers[0].projections[projection].takes(rows) is torch.bfloat16
        return Out(rows, self._decoder.input_widths[projection], bf16=is_bf16, fp32=keep_fp32)

    def _project(self, layer: Layer, index: int, name: str, x: Out, groups: AdapterGroups) -> torch.Tensor:
        y_RO = layer.projections[name](x.for_product)
        if not groups:
            return y_RO
        assert x.fp32 is not None
        y_RO = y_RO.float()
        for rows, adapter in groups:
            if low_rank := adapter.get((index, name)):
                self._native.low_rank(y_RO[rows], x.fp32[rows], low_rank)
        return y_RO
