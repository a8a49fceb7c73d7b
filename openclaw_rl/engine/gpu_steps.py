"""What one recorded decoding step computes: the layers of a decoder for one new token of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from openclaw_rl.engine.gpu_attention import Attention, BatchRows
from openclaw_rl.engine.gpu_lora import add_low_rank, shrink_row
from openclaw_rl.engine.gpu_products import LowRow, Matrix, add_norm, gate, multiply
from openclaw_rl.engine.kernels import FloatKernel, Kernel
from openclaw_rl.engine.lora import entry_of

if TYPE_CHECKING:
    from openclaw_rl.engine.model import Decoder, Layer


class Steps:
    """Reads the rows from tables on the device and returns fp32 logits; launches kernels only."""

    def __init__(
        self,
        decoder: Decoder,
        where: BatchRows,
        attention: Attention,
        norms: Sequence[torch.Tensor | None],
        table_SE3: torch.Tensor,
    ) -> None:
        self._decoder, self._where, self._attention = decoder, where, attention
        self._table_SE3, self._eps = table_SE3, decoder.shape.norm_eps
        self._norms = norms
        self._matrices = [
            {name: _matrix(kernel, name == "gate_up") for name, kernel in layer.projections.items()}
            for layer in decoder.layers
        ]
        self._head = _matrix(decoder.head)

    def __call__(self, rows: int, ranks: int) -> torch.Tensor:
        """``ranks`` is an upper bound of the rows' adapters, 0 for none."""
        hidden_RH = self._decoder.embedding_VH[self._where.ids_R[:rows]]
        return self._one(hidden_RH[0], ranks) if rows == 1 else self._several(hidden_RH, ranks)

    def _attend(self, qkv_RO: torch.Tensor, index: int) -> torch.Tensor:
        rope, norms = self._decoder.rope_tables, self._norms[index]
        return self._attention(qkv_RO, rope, norms, self._eps, self._where, index)

    # --- one row -----------------------------------------------------------------------------

    def _one(self, hidden_H: torch.Tensor, ranks: int) -> torch.Tensor:
        for index, layer in enumerate(self._decoder.layers):
            qkv = self._multiply(index, "qkv", hidden_H, ranks, norm_I=layer.input_norm.weight)
            attended = self._attend(qkv.unsqueeze(0), index)[0]
            hidden_H = self._multiply(index, "o", attended, ranks, residual_O=hidden_H)
            gated = self._multiply(index, "gate_up", hidden_H, ranks, norm_I=layer.post_norm.weight)
            hidden_H = self._multiply(index, "down", gated, ranks, residual_O=hidden_H)
        norm_H = self._decoder.final_norm.weight
        return multiply(self._head, hidden_H, norm_H, self._eps, dtype=torch.float32).unsqueeze(0)

    def _multiply(
        self,
        index: int,
        name: str,
        x_I: torch.Tensor,
        ranks: int,
        norm_I: torch.Tensor | None = None,
        residual_O: torch.Tensor | None = None,
    ) -> torch.Tensor:
        low = None
        if ranks:
            slot_R, entry = self._where.slot_R, entry_of(index, name)
            parts_SK = shrink_row(x_I, norm_I, self._table_SE3, slot_R, entry, ranks)
            low = LowRow(parts_SK, self._table_SE3, slot_R, entry)
        return multiply(self._matrices[index][name], x_I, norm_I, self._eps, residual_O, low)

    # --- several rows ------------------------------------------------------------------------

    def _several(self, hidden_RH: torch.Tensor, ranks: int) -> torch.Tensor:
        added: torch.Tensor | None = None
        for index, layer in enumerate(self._decoder.layers):
            normed = add_norm(hidden_RH, added, layer.input_norm.weight, self._eps)
            attended = self._attend(self._project(layer, index, "qkv", normed, ranks), index)
            added = self._project(layer, index, "o", attended, ranks)
            normed = add_norm(hidden_RH, added, layer.post_norm.weight, self._eps)
            gated = gate(self._project(layer, index, "gate_up", normed, ranks))
            added = self._project(layer, index, "down", gated, ranks)
        normed = add_norm(hidden_RH, added, self._decoder.final_norm.weight, self._eps)
        return self._decoder.head(normed).float()

    def _project(self, layer: Layer, index: int, name: str, x_RI: torch.Tensor, ranks: int) -> torch.Tensor:
        y_RO = layer.projections[name](x_RI)
        if ranks:
            add_low_rank(y_RO, x_RI, self._table_SE3, self._where.groups_3R, entry_of(index, name), ranks)
        return y_RO


def _matrix(kernel: Kernel, gated: bool = False) -> Matrix:
    assert isinstance(kernel, FloatKernel), "on a GPU, weights are in the activations' precision"
    return Matrix(*kernel.joined(), gated)


def stack_norms(layer: Layer) -> torch.Tensor | None:
    """The weights of the norms on queries and keys, where there are any."""
    if layer.q_norm is None or layer.k_norm is None:
        return None
    return torch.stack([layer.q_norm.weight, layer.k_norm.weight])
