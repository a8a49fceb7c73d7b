"""The decoder's forward pass over packed rows of many sequences at once.

Rows of all sequences are in one ``[R, hidden]`` tensor, without padding. Linear layers process all
rows together; attention reads each sequence's own keys and values in place. Every row uses its
sequence's adapter. Results differ from a plain transformers forward only by rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F

from openclaw_rl.engine.graphs import GraphDecode, recorded
from openclaw_rl.engine.kernels import Kernel, KernelSet, SplitKernel, kernel_set
from openclaw_rl.engine.kv import OpenRows, SequenceCache
from openclaw_rl.engine.lora import PROJECTIONS, Adapter, load_adapter
from openclaw_rl.engine.native_layers import NativeLayers
from openclaw_rl.engine.weights import Checkpoint, load_tensors

#: Below this many rows, operator overhead exceeds arithmetic.
_MANY_ROWS = 16
#: Up to this many tokens are sampled at once with the head for few rows, which is exact for the likeliest.
_SAMPLED_ROWS = 64


@dataclass(slots=True)
class Chunk:
    """The next tokens of one sequence to run; they follow those in its cache."""

    token_ids: Sequence[int]
    cache: SequenceCache
    adapter: Adapter | None
    num_logits: int = 1
    """How many of the last rows need logits."""
    hidden_layer: int | None = None
    """Keep the last row's hidden state after this layer."""
    hidden: torch.Tensor | None = None


class Network(Protocol):
    """What the engine runs: our own decoder, or transformers' modules (``general.py``)."""

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor: ...

    def new_cache(self) -> SequenceCache: ...

    def up_to(self, layer: int) -> Network | None:
        """The layers up to this one, sharing weights; None if all of them have to run."""

    def read_adapter(self, path: Path) -> Adapter: ...

    def forget(self, adapter: Adapter) -> None: ...


@dataclass(slots=True)
class _Span:
    """Where a chunk's rows are in the packed batch and in its sequence."""

    batch: slice
    rows: OpenRows
    mask: torch.Tensor | None
    q_1NTD: torch.Tensor
    kv_2HTD: torch.Tensor


class _Heads:
    """One layer's queries, keys and values of all rows, in a buffer that every layer overwrites.

    Its views are created once per step: on a CPU, creating one costs as much as a small product.
    """

    def __init__(
        self, cos_RD: torch.Tensor, sin_RD: torch.Tensor, num_q: int, num_kv: int, dtype: torch.dtype
    ) -> None:
        num_rows, dim = cos_RD.shape
        self.cos_R1D, self.sin_R1D = cos_RD.unsqueeze(1), sin_RD.unsqueeze(1)
        self.qkv_RO = torch.empty(num_rows, (num_q + 2 * num_kv) * dim, device=cos_RD.device, dtype=dtype)
        heads_RND = self.qkv_RO.view(num_rows, -1, dim)
        self.q_RND = heads_RND.narrow(1, 0, num_q)
        self.k_RHD = heads_RND.narrow(1, num_q, num_kv)
        self.kv_R2HD = heads_RND.narrow(1, num_q, 2 * num_kv).view(num_rows, 2, num_kv, dim)
        self._qk = heads_RND.narrow(1, 0, num_q + num_kv)
        self._swapped_halves = self._qk.chunk(2, dim=-1)[::-1]
        self._swapped = torch.empty_like(self._qk)

    def rotate(self) -> None:
        """Apply rotary positions in place, so that rotated keys stay next to their values."""
        # rotate_half(x) swaps the halves; the first half's sign is in the sine table.
        torch.cat(self._swapped_halves, dim=-1, out=self._swapped)
        self._qk.mul_(self.cos_R1D).addcmul_(self._swapped, self.sin_R1D)


class Norm:
    """RMS norm over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        size = weight.shape[0]
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device, dtype=weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or x.shape[0] >= _MANY_ROWS:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        # The same number in half the operators: sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(n eps)) / sqrt(n).
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        normed: torch.Tensor = x * (self._scaled / length)
        return normed


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Norm
    post_norm: Norm
    projections: dict[str, Kernel]
    q_norm: Norm | None
    k_norm: Norm | None


class Decoder:
    """Weights of one checkpoint and the pass over them. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        kernels: KernelSet | None = None,
        graphs: bool = False,
    ) -> None:
        """``graphs``: decode with CUDA graphs, on a GPU."""
        self._kernels = kernels = kernels or kernel_set("float")
        self.shape = checkpoint.shape
        self.device, self.dtype = device, dtype
        tensors = {
            name: tensor.to(device=device, dtype=dtype)
            for name, tensor in load_tensors(checkpoint.path).items()
        }
        self.embedding_VH = tensors["model.embed_tokens.weight"]
        head = self.embedding_VH if self.shape.tied else tensors["lm_head.weight"]
        self.head = self._sampling_head = kernels.head(head)
        if isinstance(self.head, SplitKernel):
            self._sampling_head = self.head.with_threshold(_SAMPLED_ROWS)
        self.final_norm = Norm(tensors["model.norm.weight"], self.shape.norm_eps)
        self.layers = [
            self._layer(tensors, index, kernels.projection) for index in range(self.shape.num_layers)
        ]
        self.widths = {
            projection: [tensors[f"model.layers.0.{module}.weight"].shape[0] for module in modules]
            for projection, modules in PROJECTIONS.items()
        }
        self.input_widths = {
            projection: tensors[f"model.layers.0.{modules[0]}.weight"].shape[1]
            for projection, modules in PROJECTIONS.items()
        }
        self.rope_tables = _rope_tables(checkpoint, device, dtype)
        self._native = NativeLayers.of(self, kernels)
        self._graphs = recorded(self) if graphs else None

    def _layer(self, tensors: dict[str, torch.Tensor], index: int, project: Callable[..., Kernel]) -> Layer:
        prefix = f"model.layers.{index}"

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{prefix}.{name}.weight"], self.shape.norm_eps)

        return Layer(
            input_norm=norm("input_layernorm"),
            post_norm=norm("post_attention_layernorm"),
            projections={
                projection: project(
                    [tensors[f"{prefix}.{module}.weight"] for module in modules],
                    [tensors.get(f"{prefix}.{module}.bias") for module in modules],
                )
                for projection, modules in PROJECTIONS.items()
            },
            q_norm=norm("self_attn.q_norm") if self.shape.has_qk_norm else None,
            k_norm=norm("self_attn.k_norm") if self.shape.has_qk_norm else None,
        )

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run the chunks, extend their caches, return fp32 logits of the requested rows, in order."""
        if self._graphs is None:
            return self._forward(chunks)
        decoding = [chunk for chunk in chunks if GraphDecode.suits(chunk)]
        if not decoding:
            return self._forward(chunks)
        if len(decoding) == len(chunks):
            return self._graphs(decoding)
        others = [chunk for chunk in chunks if not GraphDecode.suits(chunk)]
        # The prompt first: copying its tokens to the GPU waits for what was launched before.
        others_RV = self._forward(others).to(self.device)
        both_RV = torch.cat([self._graphs(decoding), others_RV])
        return both_RV[_places(chunks, len(decoding))]

    def new_cache(self) -> SequenceCache:
        shape = self.shape
        return SequenceCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, self.device, self.dtype)

    def up_to(self, layer: int) -> Decoder | None:
        """On a CPU only: what a GPU would save is less than what launching another decoder costs."""
        if self.device.type != "cpu":
            return None
        first = copy.copy(self)
        first.layers = self.layers[: layer + 1]
        first.shape = replace(self.shape, num_layers=layer + 1)
        first._native = NativeLayers.of(first, self._kernels)
        return first

    def read_adapter(self, path: Path) -> Adapter:
        return load_adapter(
            path, self.shape.num_layers, self.widths, self.input_widths, self.device, self.dtype
        )

    def forget(self, adapter: Adapter) -> None:
        """Drop references to an unloaded adapter."""
        if self._graphs is not None:
            self._graphs.forget(adapter)

    def _forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        ids = torch.tensor([i for chunk in chunks for i in chunk.token_ids], device=self.device)
        groups = _adapter_groups(chunks)
        hidden_RH = self.embedding_VH[ids]
        if self._native and len(ids) < self._native.most_rows:
            self._native(hidden_RH, chunks, groups)
        elif self._graphs:
            self._graphs.prompts(hidden_RH, chunks, groups)
        else:
            self._run_layers(hidden_RH, chunks, groups)
        for chunk in chunks:
            chunk.cache.extend(chunk.token_ids)
        rows = _logit_rows(chunks)
        if not rows:
            return torch.empty(0, self.shape.vocab)
        if len(rows) < len(ids):
            hidden_RH = hidden_RH[torch.tensor(rows, device=self.device)]
        # What is sampled comes from the likeliest tokens; what is scored may be any token.
        sampled = all(chunk.num_logits <= 1 for chunk in chunks)
        head = self._sampling_head if sampled else self.head
        return head(self.final_norm(hidden_RH)).float()

    def _run_layers(
        self, hidden_RH: torch.Tensor, chunks: Sequence[Chunk], groups: list[tuple[slice, Adapter]]
    ) -> None:
        """Run all layers over ``hidden_RH``, in place."""
        heads = self._heads(chunks)
        spans = self._spans(chunks, heads)
        for index, layer in enumerate(self.layers):
            normed = layer.input_norm(hidden_RH)
            qkv = self.project(layer, index, "qkv", normed, groups)
            attended = self._attend(layer, index, qkv, heads, spans)
            hidden_RH.add_(self.project(layer, index, "o", attended, groups))
            normed = layer.post_norm(hidden_RH)
            gate, up = self.project(layer, index, "gate_up", normed, groups).unsafe_chunk(2, dim=-1)
            hidden_RH.add_(self.project(layer, index, "down", F.silu(gate) * up, groups))
            for chunk, span in zip(chunks, spans, strict=True):
                if chunk.hidden_layer == index:
                    chunk.hidden = hidden_RH[span.batch.stop - 1].float().cpu().clone()

    def rope(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of these positions, a row each."""
        rows = torch.tensor(positions, device=self.device)
        return self.rope_tables[0][rows], self.rope_tables[1][rows]

    def _heads(self, chunks: Sequence[Chunk]) -> _Heads:
        positions = [i for c in chunks for i in range(c.cache.length, c.cache.length + len(c.token_ids))]
        cos_RD, sin_RD = self.rope(positions)
        return _Heads(cos_RD, sin_RD, self.shape.num_heads, self.shape.num_kv_heads, self.dtype)

    def _spans(self, chunks: Sequence[Chunk], heads: _Heads) -> list[_Span]:
        spans, row = [], 0
        for chunk in chunks:
            count, start = len(chunk.token_ids), chunk.cache.length
            mask = None if count == 1 else self.causal_mask(start, start + count)
            batch = slice(row, row + count)
            spans.append(
                _Span(
                    batch,
                    chunk.cache.open(count),
                    mask,
                    q_1NTD=heads.q_RND[batch].transpose(0, 1).unsqueeze(0),
                    kv_2HTD=heads.kv_R2HD[batch].permute(1, 2, 0, 3),
                )
            )
            row += count
        return spans

    def causal_mask(self, start: int, end: int) -> torch.Tensor:
        if self.device.type == "cuda" and self.dtype != torch.float32:
            # Imported here because it takes a second, which a start on a CPU need not wait for.
            from torch.nn.attention.bias import causal_lower_right

            # Defined by its shape, it needs no memory, and the fast half-precision kernels accept it.
            return causal_lower_right(end - start, end)
        mask = torch.full((end - start, end), float("-inf"), dtype=self.dtype, device=self.device)
        return mask.triu_(start + 1)

    def project(
        self, layer: Layer, index: int, name: str, x_RI: torch.Tensor, groups: list[tuple[slice, Adapter]]
    ) -> torch.Tensor:
        y_RO = layer.projections[name](x_RI)
        if groups:
            y_RO = y_RO.to(self.dtype)
            for rows, adapter in groups:
                if low_rank := adapter.get((index, name)):
                    low_rank.add_to(y_RO[rows], x_RI[rows].to(self.dtype))
        return y_RO

    def _attend(
        self, layer: Layer, index: int, qkv_RO: torch.Tensor, heads: _Heads, spans: Sequence[_Span]
    ) -> torch.Tensor:
        heads.qkv_RO.copy_(qkv_RO)
        if layer.q_norm is not None and layer.k_norm is not None:
            heads.q_RND.copy_(layer.q_norm(heads.q_RND))
            heads.k_RHD.copy_(layer.k_norm(heads.k_RHD))
        heads.rotate()
        torch._foreach_copy_([span.rows.new_2HTD[index] for span in spans], [span.kv_2HTD for span in spans])
        parts_1TND = [
            F.scaled_dot_product_attention(
                span.q_1NTD,
                span.rows.keys_1HTD[index],
                span.rows.values_1HTD[index],
                attn_mask=span.mask,
                enable_gqa=self.shape.num_heads != self.shape.num_kv_heads,
            ).transpose(1, 2)
            for span in spans
        ]
        attended = parts_1TND[0] if len(parts_1TND) == 1 else torch.cat(parts_1TND, dim=1)
        return attended.reshape(qkv_RO.shape[0], -1)


def _rope_tables(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    assert checkpoint.inv_freq is not None
    angles = torch.outer(torch.arange(checkpoint.shape.context_length).float(), checkpoint.inv_freq)
    cos, sin = angles.cos() * checkpoint.rope_scale, angles.sin() * checkpoint.rope_scale
    return (
        torch.cat([cos, cos], -1).to(device=device, dtype=dtype),
        torch.cat([-sin, sin], -1).to(device=device, dtype=dtype),
    )


def _adapter_groups(chunks: Sequence[Chunk]) -> list[tuple[slice, Adapter]]:
    """Neighbouring chunks with the same adapter share one product."""
    groups: list[tuple[slice, Adapter]] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + len(chunk.token_ids)
        if chunk.adapter is None:
            continue
        if groups and groups[-1][1] is chunk.adapter and groups[-1][0].stop == start:
            groups[-1] = (slice(groups[-1][0].start, end), chunk.adapter)
        else:
            groups.append((slice(start, end), chunk.adapter))
    return groups


def _logit_rows(chunks: Sequence[Chunk]) -> list[int]:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        rows += range(end - chunk.num_logits, end)
    return rows


def _places(chunks: Sequence[Chunk], num_decoding: int) -> list[int]:
    """The row of each chunk's logits when those of decoding chunks come first, then all others."""
    rows: list[int] = []
    first, other = 0, num_decoding
    for chunk in chunks:
        if GraphDecode.suits(chunk):
            rows.append(first)
            first += 1
        else:
            rows += range(other, other + chunk.num_logits)
            other += chunk.num_logits
    return rows
