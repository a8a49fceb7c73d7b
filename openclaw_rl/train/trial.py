"""Tries fused layers before they are used: a GPU or a torch that lacks a kernel trains without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from openclaw_rl.packing import Packing
from openclaw_rl.train.fused import FusedLayer, fuse, unfuse

log = logging.getLogger(__name__)
#: Lengths of the sequences; the second one leaves out a prefix that it shares with the first.
_LENGTHS, _SHARED = (23, 9), 5
#: Two correct programs differ by rounding, which a random network of many layers amplifies.
_MAX_ERROR, _LEAST_COSINE = 0.3, 0.7


def fused_layers(
    decoder: Any,
    packing: Packing,
    weights: Sequence[torch.Tensor],
    attach: Callable[[Any, Packing], list[FusedLayer]] = fuse,
) -> list[FusedLayer]:
    """Replace the decoder's layers, if it has fused ones that compute the same, forward and backward."""
    hidden, grads = _run(decoder, packing, weights)
    fused = attach(decoder, packing)
    if not fused:
        return []
    try:
        problem = _difference(_run(decoder, packing, weights), (hidden, grads))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        log.warning("training is slower, without fused layers: %s", problem)
        unfuse(decoder)
        return []
    return fused


def _run(
    decoder: Any, packing: Packing, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    packing.describe(_LENGTHS, shared=_SHARED if packing.can_share else 0)
    count, device = sum(_LENGTHS), weights[0].device
    places = torch.tensor([*range(_LENGTHS[0]), *range(_SHARED, _SHARED + _LENGTHS[1])], device=device)
    hidden_1TH = decoder(
        input_ids=torch.arange(count, device=device)[None], position_ids=places[None], use_cache=False
    ).last_hidden_state
    direction = torch.linspace(-1, 1, hidden_1TH.numel(), device=device).view_as(hidden_1TH)
    grads = torch.autograd.grad((hidden_1TH.float() * direction).sum(), list(weights), allow_unused=True)
    known = [grad.float().flatten() for grad in grads if grad is not None]
    return hidden_1TH.detach().float(), torch.cat(known)


def _difference(got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> str:
    error = float((got[0] - expected[0]).norm() / expected[0].norm())
    cosine = float(torch.cosine_similarity(got[1], expected[1], dim=0))
    if error <= _MAX_ERROR and cosine >= _LEAST_COSINE:
        return ""
    return f"results differ by {error:.0%}, gradients have a cosine of {cosine:.2f}"
