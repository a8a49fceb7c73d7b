"""Measures what a forward pass saves for the backward pass, rather than estimating it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def saved_bytes(run: Callable[[], object], weights: Iterable[torch.Tensor]) -> int:
    """Bytes that autograd saves during ``run``; weights are in memory anyway and do not count."""
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    # Holds the tensors themselves: freed memory could be reused at the same address.
    held: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    del result
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())
