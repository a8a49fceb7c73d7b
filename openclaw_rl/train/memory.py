"""How much of a GPU's memory a step may take, and which activations it keeps in it.

A layer's activations are kept whole, or narrow (without the wide part of its MLP), or only its input is kept
and the layer is computed again in the backward pass. Per byte, keeping a layer narrow saves the most work.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from openclaw_rl.types import GpuOffer

log = logging.getLogger(__name__)
_GIB = 2**30
#: Working memory of a layer, as a multiple of what it keeps whole: gradients, and what is computed again.
_WORKSPACE = 3
#: The part of the card that is used; the rest is for other programs, and what allocators cannot use.
_PART = 0.9
#: A GPU is busy from about the first on; longer rows than the last are no faster.
_SHORTEST, _LONGEST = 2048, 16384
#: Attempts at a step, with half the memory each.
_MOST_SHRINKS = 4


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes per token that one layer saves for the backward pass."""

    whole: float
    narrow: float
    """Equal to ``whole`` if this model's layers cannot leave out a part."""
    input: float


@dataclass(frozen=True, slots=True)
class Kept:
    """How many layers keep how much; the others keep their input."""

    whole: int
    narrow: int = 0


def what_fits(budget: float, num_tokens: int, num_layers: int, layer: LayerBytes) -> Kept:
    """For a row of that length, with ``budget`` bytes for activations and working memory."""
    left = budget / num_tokens - _WORKSPACE * layer.whole - num_layers * layer.input
    if left <= 0:
        return Kept(0)
    narrow = int(min(num_layers, left // (layer.narrow - layer.input)))
    left -= narrow * (layer.narrow - layer.input)
    extra = layer.whole - layer.narrow
    whole = narrow if extra <= 0 else int(min(narrow, left // extra))
    return Kept(whole, narrow - whole)


def longest_row(budget: float, num_layers: int, layer: LayerBytes) -> int:
    """Tokens of a row that keeps everything, within reasonable limits."""
    tokens = budget / ((num_layers + _WORKSPACE) * layer.whole)
    return int(min(max(tokens, _SHORTEST), _LONGEST))


class Budget:
    """The trainer's memory on a GPU. If a step fails for lack of memory, the next attempt takes less."""

    def __init__(self, device: torch.device, limit_gib: float, offer: GpuOffer | None = None) -> None:
        """``offer``: what the engine on the same GPU says; it may not have taken all of its memory yet."""
        free, total = torch.cuda.mem_get_info(device)
        self._device, own = device, torch.cuda.memory_reserved(device)
        part, taken_later = (_PART, 0) if offer is None else (offer.part, offer.taken_later)
        self._limit = limit_gib * _GIB or own + free - (1 - part) * total - taken_later
        self._share, self._shrinks = 1.0, 0

    def activations(self, fixed: int) -> float:
        """Bytes for a row's activations and working memory, beside what is allocated and ``fixed``."""
        left = self._limit - torch.cuda.memory_allocated(self._device) - fixed
        return max(0.0, left) * self._share

    def shrink(self, error: Exception) -> None:
        """Raises the error if there is nothing left to give up."""
        if self._shrinks == _MOST_SHRINKS:
            raise error
        self._shrinks += 1
        self._share /= 2
        torch.cuda.empty_cache()
        log.warning("out of memory: the step starts again and keeps fewer activations")
