"""Runs a batch through all layers in one call to ``native.c``.

The same arithmetic as ``Decoder._run_layers``: decoding, prompts, adapters and any mix of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from openclaw_rl.engine.kernels import Kernel, KernelSet, NativeKernel, SplitKernel
from openclaw_rl.engine.native import TILE, Model, Native, NativeBatch, Product, records

if TYPE_CHECKING:
    from openclaw_rl.engine.lora import Adapter
    from openclaw_rl.engine.model import Chunk, Decoder, Layer


class NativeLayers:
    """Runs the layers of one decoder."""

    def __init__(self, decoder: Decoder, native: Native, most_rows: int) -> None:
        self._native, self.most_rows = native, most_rows
        self._shape = shape = decoder.shape
        self._room = torch.empty(0)
        self._rope = tuple(table.contiguous() for table in decoder.rope_tables)
        self._layers = records([_record(layer) for layer in decoder.layers])
        cos, sin = (table.data_ptr() for table in self._rope)
        self._model = Model(
            self._layers.ctypes.data, cos, sin, shape.num_layers, shape.hidden, shape.num_heads,
            shape.num_kv_heads, shape.head_dim, decoder.input_widths["down"], shape.norm_eps,
        )  # fmt: skip

    @classmethod
    def of(cls, decoder: Decoder, kernels: KernelSet) -> NativeLayers | None:
        """None where torch's operators are needed: other devices and dtypes, heads of no whole tiles."""
        is_plain = decoder.device.type == "cpu" and decoder.dtype == torch.float32
        if kernels.native is None or not is_plain or decoder.shape.head_dim % TILE:
            return None
        return cls(decoder, kernels.native, kernels.native_rows)

    def __call__(
        self, hidden_RI: torch.Tensor, chunks: Sequence[Chunk], groups: Sequence[tuple[slice, Adapter]]
    ) -> None:
        """From the tokens' embeddings to the last layer's hidden states, in place."""
        spans = records(self._spans(chunks))
        tables = [adapter.records(self._shape.num_layers) for _, adapter in groups]
        adapters = records(
            [
                (rows.start, rows.stop - rows.start, table.ctypes.data)
                for (rows, _), table in zip(groups, tables, strict=True)
            ]
        )
        most_rank = max((adapter.most_rank for _, adapter in groups), default=0)
        batch = NativeBatch(
            ctypes.addressof(self._model), hidden_RI.data_ptr(), spans.ctypes.data, adapters.ctypes.data,
            len(hidden_RI), len(chunks), len(groups), most_rank,
        )  # fmt: skip
        if self._room.numel() < (floats := self._native.room_floats(batch)):
            self._room = torch.empty(floats)
        self._native.run_layers(batch, self._room)

    def _spans(self, chunks: Sequence[Chunk]) -> list[tuple[int, ...]]:
        spans: list[tuple[int, ...]] = []
        row = 0
        for chunk in chunks:
            count, cache = len(chunk.token_ids), chunk.cache
            cache.reserve(cache.length + count)
            layer, hidden = -1, 0
            if chunk.hidden_layer is not None:
                chunk.hidden = torch.empty(self._shape.hidden)
                layer, hidden = chunk.hidden_layer, chunk.hidden.data_ptr()
            spans.append((row, count, cache.pointer, cache.capacity, cache.length, layer, hidden))
            row += count
        return spans


def _record(layer: Layer) -> list[int]:
    norms = (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)
    pointers = [0 if norm is None else norm.weight.data_ptr() for norm in norms]
    products = [_product(layer.projections[name]) for name in ("qkv", "o", "gate_up", "down")]
    return [*pointers, *(int(field) for product in products for field in product.record)]


def _product(kernel: Kernel) -> Product:
    few = kernel.few if isinstance(kernel, SplitKernel) else kernel
    assert isinstance(few, NativeKernel)
    return few.product
