"""What layers keep of a row for its backward pass, measured rather than estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from openclaw_rl.packing import Packing
from openclaw_rl.train.fused import FusedLayer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.memory import Kept, LayerBytes, longest_row, what_fits

#: Length of the trial run that measures what a layer saves per token.
_SAMPLE_TOKENS = 64


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


class Activations:
    """Decides per row which layers keep their activations, and runs the decoder so."""

    def __init__(
        self,
        model: Any,
        decoder: Any,
        packing: Packing,
        options: LocalTrainerOptions,
        fused: Sequence[FusedLayer] = (),
        budget: Callable[[], float] | None = None,
    ) -> None:
        """``budget``: bytes that a row may take now, if no limit is set."""
        self._model, self._decoder, self._packing = model, decoder, packing
        self._options, self._fused, self._budget = options, fused, budget

    @property
    def _num_layers(self) -> int:
        return len(self._decoder.layers)

    def kept(self, num_tokens: int) -> Kept:
        if self._options.activation_gib:
            limit = self._options.activation_gib * 2**30
            return Kept(int(limit / (num_tokens * self.layer_bytes)))
        if self._budget is not None:
            return what_fits(self._budget(), num_tokens, self._num_layers, self._sizes)
        return Kept(self._num_layers * self._options.checkpoint_tokens // num_tokens)

    def longest_row(self) -> int:
        """Length of rows that keep everything on a GPU."""
        assert self._budget is not None
        return longest_row(self._budget(), self._num_layers, self._sizes)

    @cached_property
    def layer_bytes(self) -> float:
        """Bytes of activations that a layer saves per token."""
        return self._measure()

    def _measure(self) -> float:
        self._packing.describe([_SAMPLE_TOKENS])
        device = next(self._model.parameters()).device
        ids_1T = torch.zeros(1, _SAMPLE_TOKENS, dtype=torch.long, device=device)
        run = partial(self._decoder, input_ids=ids_1T, use_cache=False)
        return saved_bytes(run, self._model.parameters()) / self._num_layers / _SAMPLE_TOKENS

    @cached_property
    def _sizes(self) -> LayerBytes:
        with self._narrow(self._fused):
            narrow = self._measure()
        hidden = self._model.config.get_text_config().hidden_size
        return LayerBytes(self.layer_bytes, narrow, hidden * self._decoder.dtype.itemsize)

    @contextmanager
    def keeping(self, num_tokens: int) -> Iterator[None]:
        """Keep the activations that fit, compute the rest again.

        Transformers checkpoints only in training mode, which is safe: the model has no dropout.
        """
        layers, kept = self._decoder.layers, self.kept(num_tokens)
        # The last layers keep theirs: that memory is freed before the first layer is computed again.
        first_kept = max(0, len(layers) - kept.whole - kept.narrow)
        # A layer that is computed again must keep the same both times.
        with self._narrow(self._fused[first_kept : max(0, len(layers) - kept.whole)]):
            if not first_kept:
                yield
                return
            self._decoder.gradient_checkpointing_enable({"use_reentrant": False})
            for layer in layers[first_kept:]:
                layer.gradient_checkpointing = False
            self._model.train()
            try:
                yield
            finally:
                self._decoder.gradient_checkpointing_disable()
                self._model.eval()

    @contextmanager
    def _narrow(self, layers: Sequence[FusedLayer]) -> Iterator[None]:
        for layer in layers:
            layer.keeps_mlp = False
        try:
            yield
        finally:
            for layer in layers:
                layer.keeps_mlp = True
