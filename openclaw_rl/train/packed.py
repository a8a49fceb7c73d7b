"""Sequence packing: examples end to end in one row of tokens, no padding, each attending only to itself.

If all examples of a row begin with the same tokens (a system prompt), the row holds those once. How a model
runs such a row is in ``openclaw_rl/packing.py``. Logits are computed only for positions that carry signal, a
few hundred rows at a time, and never kept: the backward pass needs one vector per position instead, or
recomputes the logits if the head itself is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from openclaw_rl.types import Example

#: Rows of logits in memory at once. A GPU needs more of them to be busy.
_LOGIT_ROWS, _GPU_LOGIT_ROWS = 256, 1024
_NO_VERSION = -1


@dataclass(frozen=True)
class Packed:
    """Some examples packed into one row."""

    ids_1T: torch.Tensor
    positions_1T: torch.Tensor
    lengths: list[int]
    shared: int
    """Number of tokens that every example begins with; only the first example's are in the row."""
    rows_N: torch.Tensor
    """The positions that predict the replies' tokens."""
    targets_NK: torch.Tensor
    old_NK: torch.Tensor
    signal_NK: torch.Tensor
    weights_N: torch.Tensor
    """An example's weights sum to its weight over the number of examples in the whole batch."""
    versions_N: torch.Tensor
    """The version that sampled each token."""

    @property
    def num_tokens(self) -> int:
        return self.ids_1T.shape[1]


def pack(
    items: Sequence[Example],
    max_tokens: int,
    device: torch.device,
    padding: float = 0.0,
    share: bool = False,
) -> Iterator[Packed]:
    """Rows of at most ``max_tokens``, longest examples first; a longer example gets its own row.

    ``padding`` fills the signal of examples with fewer candidates than others in their row. ``share`` leaves
    a common prefix out of all examples but the first.
    """
    order = sorted(items, key=lambda item: -_length(item))
    rows: list[list[Example]] = []
    for item in order:
        for row in rows:
            if sum(map(_length, row)) + _length(item) <= max_tokens:
                row.append(item)
                break
        else:
            rows.append([item])
    for row in rows:
        yield _pack(row, len(items), device, padding, _common_prefix(row) if share else 0)


def _length(item: Example) -> int:
    # The last token is never an input: nothing after it is predicted.
    return len(item.prompt_ids) + len(item.reply_ids) - 1


def _common_prefix(items: Sequence[Example]) -> int:
    """Length of the common prompt prefix, without each prompt's last token, which predicts the reply."""
    if len(items) < 2:
        return 0
    columns = zip(*(item.prompt_ids[:-1] for item in items), strict=False)
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))


def _pack(
    items: Sequence[Example], batch_size: int, device: torch.device, padding: float, shared: int
) -> Packed:
    starts = [0, *[shared] * (len(items) - 1)]
    lengths = [_length(item) - start for item, start in zip(items, starts, strict=True)]
    width = max(item.ids_NK.shape[1] for item in items)
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    weights: list[float] = []
    versions: list[int] = []
    offset = 0
    for item, length, start in zip(items, lengths, starts, strict=True):
        prompt, reply = item.prompt_ids[start:], item.reply_ids
        ids += prompt + reply[:-1]
        positions += range(start, start + length)
        rows += range(offset + len(prompt) - 1, offset + length)
        weights += [item.weight / (max(1, item.num_free) * batch_size)] * len(reply)
        version = item.source.policy_version
        versions += [_NO_VERSION if version is None else version] * len(reply)
        offset += length

    def columns(name: str, fill: float, dtype: torch.dtype) -> torch.Tensor:
        arrays = [getattr(item, name) for item in items]
        filled = [np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=fill) for a in arrays]
        return torch.from_numpy(np.concatenate(filled)).to(device=device, dtype=dtype)

    def tensor(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Packed(
        ids_1T=tensor(ids, torch.long).unsqueeze(0),
        positions_1T=tensor(positions, torch.long).unsqueeze(0),
        lengths=lengths,
        shared=shared,
        rows_N=tensor(rows, torch.long),
        targets_NK=columns("ids_NK", 0, torch.long),
        old_NK=columns("old_NK", 0.0, torch.float32),
        signal_NK=columns("signal_NK", padding, torch.float32),
        weights_N=tensor(weights, torch.float32),
        versions_N=tensor(versions, torch.long),
    )


@dataclass(frozen=True)
class Head:
    """From the last hidden state to logits, as the model family defines it."""

    weight_VH: torch.Tensor
    bias_V: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @property
    def is_frozen_product(self) -> bool:
        plain = self.bias_V is None and self.scale == 1.0 and self.softcap is None
        return plain and not self.weight_VH.requires_grad

    def logits(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        logits_NV = F.linear(hidden_NH, self.weight_VH, self.bias_V).float() * self.scale
        return logits_NV if self.softcap is None else torch.tanh(logits_NV / self.softcap) * self.softcap


def head_of(model: Any) -> Head:
    """Read the head from the model's config."""
    config, linear = model.config.get_text_config(), model.get_output_embeddings()
    scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
    return Head(linear.weight, linear.bias, scale, getattr(config, "final_logit_softcapping", None))


def working_bytes(head: Head) -> int:
    """Of ``logprobs``: logits in the head's precision and in fp32, and two copies of these."""
    return _GPU_LOGIT_ROWS * len(head.weight_VH) * (head.weight_VH.dtype.itemsize + 12)


def logprobs(hidden_NH: torch.Tensor, head: Head, targets_NK: torch.Tensor) -> torch.Tensor:
    """Raw log-probs of the targets; full logits exist for a few rows at a time only."""
    count = _GPU_LOGIT_ROWS if hidden_NH.is_cuda else _LOGIT_ROWS
    parts = []
    for hidden, targets in zip(hidden_NH.split(count), targets_NK.split(count), strict=True):
        # fp32 only: the saved mean embedding is later part of a difference, for which bf16 is too coarse.
        if head.is_frozen_product and hidden.dtype == head.weight_VH.dtype == torch.float32:
            parts.append(_FrozenHead.apply(hidden, head.weight_VH, targets))  # type: ignore[no-untyped-call]
        elif head.is_frozen_product and hidden.is_cuda:
            parts.append(HalfHead.apply(hidden, head.weight_VH, targets))  # type: ignore[no-untyped-call]
        else:
            parts.append(checkpoint(_chunk_logprobs, hidden, head, targets, use_reentrant=False))
    return torch.cat(parts)


def _chunk_logprobs(hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
    logits = head.logits(hidden)
    return logits.gather(1, targets) - logits.logsumexp(dim=1, keepdim=True)


class _FrozenHead(torch.autograd.Function):
    """Two products with the head's weights instead of three.

    The gradient of a log-prob is its token's embedding minus the mean embedding under the whole distribution,
    and that mean can be computed while the logits exist.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: torch.Tensor, head_VH: torch.Tensor, targets_NK: torch.Tensor
    ) -> torch.Tensor:
        logits_NV = F.linear(hidden_NH, head_VH)
        chosen_NK = logits_NV.gather(1, targets_NK)
        largest_N1 = logits_NV.amax(dim=1, keepdim=True)
        exps_NV = logits_NV.sub_(largest_N1).exp_()
        total_N1 = exps_NV.sum(dim=1, keepdim=True)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(exps_NV @ head_VH / total_N1, head_VH, targets_NK)
        return chosen_NK - (largest_N1 + total_N1.log())

    @staticmethod
    def backward(ctx: Any, grad_NK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        mean_NH, head_VH, targets_NK = ctx.saved_tensors
        toward_NH = torch.bmm(grad_NK.unsqueeze(1), head_VH[targets_NK]).squeeze(1)
        return toward_NH - grad_NK.sum(dim=1, keepdim=True) * mean_NH, None, None


class HalfHead(torch.autograd.Function):
    """Computes the logits again in the backward pass, in as little memory as possible."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: torch.Tensor, head_VH: torch.Tensor, targets_NK: torch.Tensor
    ) -> torch.Tensor:
        logits_NV = F.linear(hidden_NH, head_VH).float()
        total_N1 = logits_NV.logsumexp(dim=1, keepdim=True)
        ctx.save_for_backward(hidden_NH, head_VH, targets_NK, total_N1)
        return logits_NV.gather(1, targets_NK) - total_N1

    @staticmethod
    def backward(ctx: Any, grad_NK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        hidden_NH, head_VH, targets_NK, total_N1 = ctx.saved_tensors
        grad_NV = F.linear(hidden_NH, head_VH).float().sub_(total_N1).exp_()
        grad_NV.mul_(-grad_NK.sum(dim=1, keepdim=True)).scatter_add_(1, targets_NK, grad_NK)
        return grad_NV.to(head_VH.dtype) @ head_VH, None, None
