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

from openclaw_rl.engine.kernels import KERNELS, Kernel, KernelSet
from openclaw_rl.engine.kv import OpenRows, SequenceCache
from openclaw_rl.engine.lora import PROJECTIONS, Adapter
from openclaw_rl.engine.weights import Checkpoint, load_tensors

#: Below this many rows operators cost more than arithmetic.
_MANY_ROWS = 16


@dataclass(slots=True)
class Chunk:
    """The next tokens of one sequence to run: they follow what its cache already holds."""

    token_ids: Sequence[int]
    cache: SequenceCache
    adapter: Adapter | None
    num_logits: int = 1
    """How many of the last rows need logits."""
    hidden_layer: int | None = None
    """Keep the last row's state after this layer."""
    hidden: torch.Tensor | None = None


@dataclass(slots=True)
class _Span:
    """Where a chunk's rows lie in the packed batch and in its sequence."""

    batch: slice
    start: int
    end: int
    rows: OpenRows
    mask: torch.Tensor | None


class Norm:
    """RMS norm over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps
        size = weight.shape[0]
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device, dtype=weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or x.shape[0] >= _MANY_ROWS:
            return F.rms_norm(x, (x.shape[-1],), self._weight, self._eps)
        # The same number in half the operators: sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(n eps)) / sqrt(n).
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        normed: torch.Tensor = x * (self._scaled / length)
        return normed


@dataclass(frozen=True, slots=True)
class _Layer:
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
        kernels: KernelSet = KERNELS["float"],
    ) -> None:
        self.shape = checkpoint.shape
        self.device, self.dtype = device, dtype
        tensors = {
            name: tensor.to(device=device, dtype=dtype)
            for name, tensor in load_tensors(checkpoint.path).items()
        }
        self.embedding_VH = tensors["model.embed_tokens.weight"]
        head = self.embedding_VH if self.shape.tied else tensors["lm_head.weight"]
        self.head = kernels.head(head)
        self.final_norm = Norm(tensors["model.norm.weight"], self.shape.norm_eps)
        self.layers = [
            self._layer(tensors, index, kernels.projection) for index in range(self.shape.num_layers)
        ]
        self.widths = {
            projection: [tensors[f"model.layers.0.{module}.weight"].shape[0] for module in modules]
            for projection, modules in PROJECTIONS.items()
        }
        self._rope = _rope_table(checkpoint, device, dtype)

    def _layer(self, tensors: dict[str, torch.Tensor], index: int, project: Callable[..., Kernel]) -> _Layer:
        prefix = f"model.layers.{index}"

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{prefix}.{name}.weight"], self.shape.norm_eps)

        return _Layer(
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
        """Run the chunks, extend their caches, return fp32 logits of the wanted rows, in order."""
        ids = torch.tensor([i for chunk in chunks for i in chunk.token_ids], device=self.device)
        spans = self._spans(chunks)
        positions = torch.cat([torch.arange(span.start, span.end, device=self.device) for span in spans])
        cos_RD, sin_RD = (table[positions].unsqueeze(1) for table in self._rope)
        groups = _adapter_groups(chunks, spans)
        sizes = [len(chunk.token_ids) for chunk in chunks]
        hidden_RH = self.embedding_VH[ids]
        for index, layer in enumerate(self.layers):
            normed = layer.input_norm(hidden_RH)
            qkv = self._project(layer, index, "qkv", normed, groups)
            attended = self._attend(layer, index, qkv.to(self.dtype), cos_RD, sin_RD, spans, sizes)
            hidden_RH = hidden_RH + self._project(layer, index, "o", attended, groups)
            normed = layer.post_norm(hidden_RH)
            gate, up = self._project(layer, index, "gate_up", normed, groups).chunk(2, dim=-1)
            hidden_RH = hidden_RH + self._project(layer, index, "down", F.silu(gate) * up, groups)
            for chunk, span in zip(chunks, spans, strict=True):
                if chunk.hidden_layer == index:
                    chunk.hidden = hidden_RH[span.batch.stop - 1].float().cpu()
        for chunk in chunks:
            chunk.cache.extend(chunk.token_ids)
        wanted = _wanted_rows(chunks, spans)
        if not wanted:
            return torch.empty(0, self.shape.vocab)
        last_WH = self.final_norm(hidden_RH[torch.tensor(wanted, device=self.device)])
        return self.head(last_WH).float()

    def _spans(self, chunks: Sequence[Chunk]) -> list[_Span]:
        spans, row = [], 0
        for chunk in chunks:
            count, start = len(chunk.token_ids), chunk.cache.length
            mask = None if count == 1 else self._causal_mask(start, start + count)
            spans.append(_Span(slice(row, row + count), start, start + count, chunk.cache.open(count), mask))
            row += count
        return spans

    def _causal_mask(self, start: int, end: int) -> torch.Tensor:
        mask = torch.full((end - start, end), float("-inf"), dtype=self.dtype, device=self.device)
        return mask.triu_(start + 1)

    def _project(
        self, layer: _Layer, index: int, name: str, x_RI: torch.Tensor, groups: list[tuple[slice, Adapter]]
    ) -> torch.Tensor:
        y_RO = layer.projections[name](x_RI)
        if groups:
            y_RO = y_RO.to(self.dtype)
            for rows, adapter in groups:
                if low_rank := adapter.get((index, name)):
                    low_rank.add_to(y_RO[rows], x_RI[rows].to(self.dtype))
        return y_RO

    def _attend(
        self,
        layer: _Layer,
        index: int,
        qkv_RO: torch.Tensor,
        cos_RD: torch.Tensor,
        sin_RD: torch.Tensor,
        spans: Sequence[_Span],
        sizes: list[int],
    ) -> torch.Tensor:
        shape = self.shape
        num_rows, num_q, num_kv, dim = qkv_RO.shape[0], shape.num_heads, shape.num_kv_heads, shape.head_dim
        heads_RND = qkv_RO.view(num_rows, -1, dim)
        qk = heads_RND.narrow(1, 0, num_q + num_kv)
        if layer.q_norm is not None and layer.k_norm is not None:
            qk.copy_(torch.cat([layer.q_norm(qk[:, :num_q]), layer.k_norm(qk[:, num_q:])], dim=1))
        # rotate_half(x) is a roll by half with the first half's sign in the sine table. In place:
        # rotated keys then lie beside their values, and both go into the cache in one copy.
        torch.addcmul(qk * cos_RD, qk.roll(dim // 2, -1), sin_RD, out=qk)
        q = heads_RND.narrow(1, 0, num_q).split(sizes)
        kv = heads_RND.narrow(1, num_q, 2 * num_kv).view(num_rows, 2, num_kv, dim).split(sizes)
        parts = []
        for span, q_TND, kv_T2HD in zip(spans, q, kv, strict=True):
            rows = span.rows
            rows.new_2HTD[index].copy_(kv_T2HD.permute(1, 2, 0, 3))
            attended = F.scaled_dot_product_attention(
                q_TND.transpose(0, 1).unsqueeze(0),
                rows.keys_1HTD[index],
                rows.values_1HTD[index],
                attn_mask=span.mask,
                enable_gqa=num_q != num_kv,
            )
            parts.append(attended.squeeze(0).transpose(0, 1))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(num_rows, -1)


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
        if groups and groups[-1][1] is chunk.adapter and groups[-1][0].stop == span.batch.start:
            groups[-1] = (slice(groups[-1][0].start, span.batch.stop), chunk.adapter)
        else:
            groups.append((span.batch, chunk.adapter))
    return groups


def _wanted_rows(chunks: Sequence[Chunk], spans: Sequence[_Span]) -> list[int]:
    return [
        row
        for chunk, span in zip(chunks, spans, strict=True)
        for row in range(span.batch.stop - chunk.num_logits, span.batch.stop)
    ]
