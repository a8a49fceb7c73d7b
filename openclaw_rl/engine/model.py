"""The decoder's forward pass over packed rows of many sequences at once.

Rows of all sequences lie in one ``[R, hidden]`` tensor: no padding. Linear layers see all rows
together; attention sees each sequence's own keys and values, in place. Every row carries the
adapter of its sequence. Differs from a plain transformers forward only by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from openclaw_rl.engine.kernels import FloatKernel, Kernel
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.lora import PROJECTIONS, Adapter
from openclaw_rl.engine.weights import Checkpoint, load_tensors

KernelFactory = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor | None]], Kernel]


@dataclass(slots=True)
class Chunk:
    """The next tokens of one sequence to run: they follow what its cache already holds."""

    token_ids: Sequence[int]
    cache: SequenceCache
    adapter: Adapter | None
    num_logits: int = 1
    """How many of the last rows need logits."""


@dataclass(slots=True)
class _Span:
    """Where a chunk's rows lie in the packed batch, and what they may attend to."""

    rows: slice
    cache: SequenceCache
    start: int
    end: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    projections: dict[str, Kernel]
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


class Decoder:
    """Weights of one checkpoint and the pass over them. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        make_kernel: KernelFactory = FloatKernel,
    ) -> None:
        self.shape = checkpoint.shape
        self.device, self.dtype = device, dtype
        tensors = {
            name: tensor.to(device=device, dtype=dtype)
            for name, tensor in load_tensors(checkpoint.path).items()
        }
        self.embedding_VH = tensors["model.embed_tokens.weight"]
        head = self.embedding_VH if self.shape.tied else tensors["lm_head.weight"]
        self.head = make_kernel([head], [None])
        self.final_norm = tensors["model.norm.weight"]
        self.layers = [self._layer(tensors, index, make_kernel) for index in range(self.shape.num_layers)]
        self.widths = {
            projection: [tensors[f"model.layers.0.{module}.weight"].shape[0] for module in modules]
            for projection, modules in PROJECTIONS.items()
        }
        self._rope = _rope_table(checkpoint, device, dtype)

    def _layer(self, tensors: dict[str, torch.Tensor], index: int, make_kernel: KernelFactory) -> _Layer:
        prefix = f"model.layers.{index}"
        return _Layer(
            input_norm=tensors[f"{prefix}.input_layernorm.weight"],
            post_norm=tensors[f"{prefix}.post_attention_layernorm.weight"],
            projections={
                projection: make_kernel(
                    [tensors[f"{prefix}.{module}.weight"] for module in modules],
                    [tensors.get(f"{prefix}.{module}.bias") for module in modules],
                )
                for projection, modules in PROJECTIONS.items()
            },
            q_norm=tensors.get(f"{prefix}.self_attn.q_norm.weight"),
            k_norm=tensors.get(f"{prefix}.self_attn.k_norm.weight"),
        )

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run the chunks, extend their caches, return fp32 logits of the wanted rows, in order."""
        ids = torch.tensor([i for chunk in chunks for i in chunk.token_ids], device=self.device)
        spans = self._spans(chunks)
        positions = torch.cat([torch.arange(span.start, span.end, device=self.device) for span in spans])
        cos_RD, sin_RD = (table[positions].unsqueeze(1) for table in self._rope)
        groups = _adapter_groups(chunks, spans)
        hidden_RH = self.embedding_VH[ids]
        for index, layer in enumerate(self.layers):
            normed = self._norm(hidden_RH, layer.input_norm)
            qkv = self._project(layer, index, "qkv", normed, groups)
            attended = self._attend(layer, index, qkv, cos_RD, sin_RD, spans)
            hidden_RH = hidden_RH + self._project(layer, index, "o", attended, groups)
            normed = self._norm(hidden_RH, layer.post_norm)
            gate, up = self._project(layer, index, "gate_up", normed, groups).chunk(2, dim=-1)
            hidden_RH = hidden_RH + self._project(layer, index, "down", F.silu(gate) * up, groups)
        for chunk in chunks:
            chunk.cache.extend(chunk.token_ids)
        wanted = _wanted_rows(chunks, spans)
        if not wanted:
            return torch.empty(0, self.shape.vocab)
        last_WH = self._norm(hidden_RH[torch.tensor(wanted, device=self.device)], self.final_norm)
        return self.head(last_WH).float()

    def _spans(self, chunks: Sequence[Chunk]) -> list[_Span]:
        spans, row = [], 0
        for chunk in chunks:
            count, start = len(chunk.token_ids), chunk.cache.length
            chunk.cache.reserve(start + count)
            mask = None if count == 1 else self._causal_mask(start, start + count)
            spans.append(_Span(slice(row, row + count), chunk.cache, start, start + count, mask))
            row += count
        return spans

    def _causal_mask(self, start: int, end: int) -> torch.Tensor:
        mask = torch.full((end - start, end), float("-inf"), dtype=self.dtype, device=self.device)
        return mask.triu_(start + 1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_eps)

    def _project(
        self, layer: _Layer, index: int, name: str, x_RI: torch.Tensor, groups: list[tuple[slice, Adapter]]
    ) -> torch.Tensor:
        y_RO = layer.projections[name](x_RI)
        for rows, adapter in groups:
            if low_rank := adapter.get((index, name)):
                low_rank.add_to(y_RO[rows], x_RI[rows])
        return y_RO

    def _attend(
        self,
        layer: _Layer,
        index: int,
        qkv_RO: torch.Tensor,
        cos_RD: torch.Tensor,
        sin_RD: torch.Tensor,
        spans: Sequence[_Span],
    ) -> torch.Tensor:
        shape = self.shape
        heads_RND = qkv_RO.view(qkv_RO.shape[0], -1, shape.head_dim)
        num_qk = shape.num_heads + shape.num_kv_heads
        qk, v = heads_RND[:, :num_qk], heads_RND[:, num_qk:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, : shape.num_heads], qk[:, shape.num_heads :]
            qk = torch.cat([self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)], dim=1)
        # rotate_half(x) is a roll by half with the first half's sign in the sine table.
        qk = torch.addcmul(qk * cos_RD, qk.roll(shape.head_dim // 2, -1), sin_RD)
        q, k = qk[:, : shape.num_heads], qk[:, shape.num_heads :]
        out = torch.empty_like(q)
        for span in spans:
            keys, values = span.cache.write(index, span.start, k[span.rows], v[span.rows])
            attended = F.scaled_dot_product_attention(
                q[span.rows].transpose(0, 1).unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=span.mask,
                enable_gqa=shape.num_heads != shape.num_kv_heads,
            )
            out[span.rows] = attended[0].transpose(0, 1)
        return out.flatten(1)


def _rope_table(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(checkpoint.shape.context_length).float(), checkpoint.inv_freq)
    cos, sin = angles.cos() * checkpoint.rope_scale, angles.sin() * checkpoint.rope_scale
    return (
        torch.cat([cos, cos], -1).to(device=device, dtype=dtype),
        torch.cat([-sin, sin], -1).to(device=device, dtype=dtype),
    )


def _adapter_groups(chunks: Sequence[Chunk], spans: Sequence[_Span]) -> list[tuple[slice, Adapter]]:
    """Neighbouring chunks with the same adapter share one product."""
    groups: list[tuple[slice, Adapter]] = []
    for chunk, span in zip(chunks, spans, strict=True):
        if chunk.adapter is None:
            continue
        if groups and groups[-1][1] is chunk.adapter and groups[-1][0].stop == span.rows.start:
            groups[-1] = (slice(groups[-1][0].start, span.rows.stop), chunk.adapter)
        else:
            groups.append((span.rows, chunk.adapter))
    return groups


def _wanted_rows(chunks: Sequence[Chunk], spans: Sequence[_Span]) -> list[int]:
    return [
        row
        for chunk, span in zip(chunks, spans, strict=True)
        for row in range(span.rows.stop - chunk.num_logits, span.rows.stop)
    ]
