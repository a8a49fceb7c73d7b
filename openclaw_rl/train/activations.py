"""What a model keeps of a forward pass for the backward one, by looking rather than by guessing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def saved_bytes(run: Callable[[], object], weights: Iterable[torch.Tensor]) -> int:
    """Of all that autograd keeps while ``run`` runs; weights are there anyway and do not count."""
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    # The tensors too: memory that was let go could be given out again under the same address.
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
