"""The layers of a prompt's pass on a GPU: torch's products and attention, and one kernel between each two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from openclaw_rl.engine.gpu_attention import place_heads
from openclaw_rl.engine.gpu_products import add_norm, gate
from openclaw_rl.engine.kv import OpenRows
from openclaw_rl.engine.lora import Adapter

if TYPE_CHECKING:
    from openclaw_rl.engine.model import Chunk, Decoder

Groups = list[tuple[slice, Adapter]]


class Prompts:
    """Not recorded: a prompt's length is any, and its products take longer than launching them."""

    def __init__(self, decoder: Decoder, norms: Sequence[torch.Tensor | None]) -> None:
        self._decoder, self._norms = decoder, norms
        shape = decoder.shape
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)

    def __call__(self, hidden_RH: torch.Tensor, chunks: Sequence[Chunk], groups: Groups) -> None:
        """Run all layers over ``hidden_RH``, in place."""
        decoder, eps = self._decoder, self._decoder.shape.norm_eps
        opened = [chunk.cache.open(len(chunk.token_ids)) for chunk in chunks]
        masks = [
            decoder.causal_mask(chunk.cache.length, chunk.cache.length + len(chunk.token_ids))
            for chunk in chunks
        ]
        where_3R = torch.from_numpy(_places(chunks)).to(decoder.device)
        added: torch.Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            normed = add_norm(hidden_RH, added, layer.input_norm.weight, eps)
            qkv_RO = decoder.project(layer, index, "qkv", normed, groups)
            norms = self._norms[index]
            q_RND = place_heads(qkv_RO, self._heads, decoder.rope_tables, norms, eps, where_3R, index)
            attended = self._attend(q_RND, chunks, opened, masks, index)
            added = decoder.project(layer, index, "o", attended, groups)
            normed = add_norm(hidden_RH, added, layer.post_norm.weight, eps)
            gated = gate(decoder.project(layer, index, "gate_up", normed, groups))
            added = decoder.project(layer, index, "down", gated, groups)
            _keep_hidden(chunks, index, hidden_RH, added)
        if added is not None:
            hidden_RH.add_(added)

    def _attend(
        self,
        q_RND: torch.Tensor,
        chunks: Sequence[Chunk],
        opened: Sequence[OpenRows],
        masks: Sequence[torch.Tensor],
        index: int,
    ) -> torch.Tensor:
        parts = []
        start = 0
        for chunk, rows, mask in zip(chunks, opened, masks, strict=True):
            end = start + len(chunk.token_ids)
            part_1NTD = F.scaled_dot_product_attention(
                q_RND[start:end].transpose(0, 1).unsqueeze(0),
                rows.keys_1HTD[index],
                rows.values_1HTD[index],
                attn_mask=mask,
                enable_gqa=self._heads[0] != self._heads[1],
            )
            parts.append(part_1NTD.transpose(1, 2))
            start = end
        attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return attended.reshape(q_RND.shape[0], -1)


def _places(chunks: Sequence[Chunk]) -> np.ndarray:
    """Position, cache address and capacity of each token."""
    parts = []
    for chunk in chunks:
        count, length = len(chunk.token_ids), chunk.cache.length
        part = np.empty((3, count), dtype=np.int64)
        part[0] = np.arange(length, length + count)
        part[1], part[2] = chunk.cache.pointer, chunk.cache.capacity
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _keep_hidden(
    chunks: Sequence[Chunk], index: int, hidden_RH: torch.Tensor, added_RH: torch.Tensor
) -> None:
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        if chunk.hidden_layer == index:
            chunk.hidden = (hidden_RH[end - 1] + added_RH[end - 1]).float().cpu()
