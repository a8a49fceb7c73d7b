"""Causal attention of the sequences of a packed row in one call, forward and backward.

A GPU in half precision runs the flash kernel for sequences of any lengths; everything else runs them one by
one. A prefix that sequences share is in the row once; their keys and values are copied for the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from openclaw_rl.packing import attend_one

_MAX_FLASH_DIM = 256


@dataclass(frozen=True)
class Row:
    """The lengths of the sequences in a row, of which all but the first leave out ``shared`` tokens."""

    lengths: tuple[int, ...]
    shared: int
    device: torch.device

    @cached_property
    def num_keys(self) -> list[int]:
        return [self.lengths[0], *(length + self.shared for length in self.lengths[1:])]

    @cached_property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where sequences begin and end in the queries, and in the keys."""
        return self._ends(self.lengths), self._ends(self.num_keys)

    def _ends(self, lengths: Sequence[int]) -> torch.Tensor:
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return ends.to(device=self.device, dtype=torch.int32)

    def spread(self, x_THD: torch.Tensor) -> torch.Tensor:
        """Each sequence's keys or values, the shared ones included."""
        if not self.shared or len(self.lengths) == 1:
            return x_THD
        first, *others = x_THD.split(self.lengths)
        parts = [first]
        for part in others:
            parts += [first[: self.shared], part]
        return torch.cat(parts)

    def gather(self, grad_SHD: torch.Tensor) -> torch.Tensor:
        """The gradient of ``spread``: that of a shared key is a sum over the sequences."""
        if not self.shared or len(self.lengths) == 1:
            return grad_SHD
        first, *others = grad_SHD.split(self.num_keys)
        to_shared = torch.stack([first[: self.shared], *(part[: self.shared] for part in others)])
        summed = to_shared.float().sum(0).to(grad_SHD.dtype)
        return torch.cat([summed, first[self.shared :], *(part[self.shared :] for part in others)])


def suits_flash(q_TND: torch.Tensor) -> bool:
    dim = q_TND.shape[-1]
    is_half = q_TND.dtype in (torch.bfloat16, torch.float16)
    return q_TND.is_cuda and is_half and dim <= _MAX_FLASH_DIM and dim % 8 == 0


def attend(
    q_TND: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, row: Row, scale: float
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The result, and what ``attend_back`` needs besides it."""
    if not suits_flash(q_TND):
        return _one_by_one(q_TND, k_THD, v_THD, row, scale), ()
    out_TND, sums, seed, unused, _ = torch.ops.aten._flash_attention_forward(
        q_TND, row.spread(k_THD), row.spread(v_THD), *_places(row), 0.0, True, False, scale=scale
    )
    return out_TND, (sums, seed, unused)


def attend_back(
    grad_TND: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out_TND: torch.Tensor,
    saved: Sequence[torch.Tensor],
    row: Row,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    if not saved:
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in qkv]
            again = _one_by_one(inputs[0], inputs[1], inputs[2], row, scale)
        return torch.autograd.grad(again, inputs, grad_TND)
    q, k, v = qkv
    sums, seed, unused = saved
    to_q, to_k, to_v = torch.ops.aten._flash_attention_backward(
        grad_TND, q, row.spread(k), row.spread(v), out_TND, sums, *_places(row), 0.0, True, seed, unused,
        scale=scale,
    )  # fmt: skip
    return to_q, row.gather(to_k), row.gather(to_v)


def _places(row: Row) -> tuple[Any, ...]:
    return (*row.ends, max(row.lengths), max(row.num_keys))


def _one_by_one(
    q_TND: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor, row: Row, scale: float
) -> torch.Tensor:
    own = (row.spread(x).split(row.num_keys) for x in (k_THD, v_THD))
    parts = []
    for sequence in zip(q_TND.split(row.lengths), *own, strict=True):
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in sequence)
        parts.append(attend_one(q, k, v, scale)[0].transpose(0, 1))
    return torch.cat(parts)
