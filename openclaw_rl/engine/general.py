"""Decoders without a fast path: any that transformers runs through its attention interface.

Rows of all sequences go through transformers' own modules as one packed row (``packing.py``): linear layers
and experts process them together, attention and recurrent layers process each sequence separately. At
start-up a few tokens are run both this way and by plain transformers. A network whose results differ, because
it mixes positions somewhere else, is rejected by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.lora import Adapter, load_named
from openclaw_rl.engine.model import Chunk
from openclaw_rl.engine.weights import Checkpoint, cannot_run
from openclaw_rl.packing import ATTENTION, attach, prove

_KEPT_STATES = 4


class GeneralCache(SequenceCache):
    """Keys and values per layer, and the states of recurrent layers.

    A recurrent state cannot be rolled back to an earlier token. So the states at the ends of a few prompt
    chunks are saved, and a prefix is reusable only up to one of those.
    """

    def __init__(self, config: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(0, 1, 1, device, dtype)
        self._config = config
        self._layers: dict[int, tuple[torch.Tensor, ...]] = {}
        self._kept: dict[int, list[_State]] = {}
        self.recurrent = DynamicCache(config=config)

    @property
    def _states(self) -> Iterator[Any]:
        return (layer for layer in self.recurrent.layers if isinstance(layer, LinearAttentionCacheLayerMixin))

    def append(self, layer: int, k_1HTD: torch.Tensor, v_1HTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        end = self.length + k_1HTD.shape[2]
        held = self._layers.get(layer)
        if held is None or held[0].shape[2] < end:
            held = tuple(
                self._grown(old, new) for old, new in zip(held or (None, None), (k_1HTD, v_1HTD), strict=True)
            )
            self._layers[layer] = held
        for buffer, new in zip(held, (k_1HTD, v_1HTD), strict=True):
            buffer[:, :, self.length : end] = new
        return tuple(buffer[:, :, :end] for buffer in held)

    def _grown(self, old: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        buffer = like.new_empty(*like.shape[:2], self.capacity, like.shape[3])
        if old is not None:
            buffer[:, :, : self.length] = old[:, :, : self.length]
        return buffer

    def keep_state(self) -> None:
        """Save the recurrent states, so that the current prefix can be restored."""
        if any(True for _ in self._states):
            self._kept[self.length] = [_read(state) for state in self._states]
            while len(self._kept) > _KEPT_STATES:
                del self._kept[_least_useful(sorted(self._kept))]

    def reusable(self, length: int) -> int:
        if not any(True for _ in self._states):
            return length
        return max((n for n in (self.length, *tuple(self._kept)) if n <= length), default=0)

    def truncate(self, length: int) -> None:
        if length < self.length:
            self._kept = {n: kept for n, kept in self._kept.items() if n <= length}
            self._restore(self._kept.get(length))
        super().truncate(length)

    def copy_prefix(self, other: SequenceCache, length: int) -> None:
        assert isinstance(other, GeneralCache)
        self.reserve(length)
        self._ids[:length] = other._ids[:length]
        self.length = length
        for layer, held in other._layers.items():
            self._layers[layer] = tuple(self._grown(buffer[:, :, :length], buffer) for buffer in held)
        now = [_read(state) for state in other._states] if other.length == length else None
        self._restore(other._kept.get(length, now))

    def _restore(self, kept: list[_State] | None) -> None:
        self.recurrent = DynamicCache(config=self._config)
        for state, values in zip(self._states, kept or (), strict=False):
            _write(state, values)


_State = tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]


def _read(state: Any) -> _State:
    conv, recurrent = (
        {i: tensor.clone() for i, tensor in tensors.items() if tensor is not None}
        for tensors in (state.conv_states, state.recurrent_states)
    )
    return conv, recurrent


def _write(state: Any, values: _State) -> None:
    for index, tensor in values[0].items():
        state.update_conv_state(tensor, index)
    for index, tensor in values[1].items():
        state.update_recurrent_state(tensor, index)


def _least_useful(lengths: list[int]) -> int:
    """The length whose neighbours are closest to each other; never the last one."""
    gaps = [lengths[i + 1] - (lengths[i - 1] if i else 0) for i in range(len(lengths) - 1)]
    return lengths[gaps.index(min(gaps))]


class _Pasts(Cache):
    """Presents the caches of all sequences to transformers as one."""

    def __init__(self, decoder: GeneralDecoder) -> None:
        super().__init__(layers=[])
        self._packing = decoder.packing

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        packing = self._packing
        assert packing.pasts is not None
        keys, values = (x.split(packing.lengths, 2) for x in (key_states, value_states))
        packing.seen = [
            past.append(layer_idx, k, v) for past, k, v in zip(packing.pasts, keys, values, strict=True)
        ]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class GeneralDecoder:
    """Weights of one checkpoint in transformers' modules. Not thread-safe: one caller at a time."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.shape, self.device, self.dtype = checkpoint.shape, device, dtype
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                checkpoint.path, dtype=dtype, attn_implementation=ATTENTION
            )
        except (ValueError, ImportError) as error:
            raise cannot_run(checkpoint, str(error).splitlines()[0]) from None
        self._model.eval().requires_grad_(False).to(device)
        decoder = self._model.get_decoder()
        self._config, self.packing = decoder.config, attach(decoder)
        self._chunks: Sequence[Chunk] = ()
        self._linears = {
            name: module
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        for name, linear in self._linears.items():
            linear.register_forward_hook(_Adapting(self, name))
        for index, layer in enumerate(decoder.layers):
            layer.register_forward_hook(_Keeping(self, index))
        try:
            prove(self._model, self.packing, self._packed)
        except ValueError as error:
            raise cannot_run(checkpoint, str(error)) from error

    def new_cache(self) -> SequenceCache:
        return GeneralCache(self._config, self.device, self.dtype)

    def read_adapter(self, path: Path) -> Adapter:
        widths = {name: (module.in_features, module.out_features) for name, module in self._linears.items()}
        return load_named(path, widths, self.device, self.dtype)

    def forget(self, adapter: Adapter) -> None:
        """Nothing to do: no reference to an unloaded adapter is kept here."""

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run the chunks, extend their caches, return fp32 logits of the requested rows, in order."""
        for chunk in chunks:
            chunk.cache.reserve(chunk.cache.length + len(chunk.token_ids))
        rows = [row for chunk, end in _placed(chunks) for row in range(end - chunk.num_logits, end)]
        caches: Any = [chunk.cache for chunk in chunks]
        self.packing.describe([len(chunk.token_ids) for chunk in chunks], caches)
        self._chunks = chunks
        # transformers cannot be asked for zero rows of logits.
        logits_RV = self._run(chunks, rows or [0])
        self._chunks = ()
        for chunk in chunks:
            chunk.cache.extend(chunk.token_ids)
            if len(chunk.token_ids) > 1:
                chunk.cache.keep_state()  # type: ignore[attr-defined]
        return logits_RV if rows else logits_RV[:0]

    def _run(self, chunks: Sequence[Chunk], rows: list[int]) -> torch.Tensor:
        ids = [token for chunk in chunks for token in chunk.token_ids]
        positions = [
            chunk.cache.length + offset for chunk in chunks for offset in range(len(chunk.token_ids))
        ]
        logits_1RV = self._model(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            past_key_values=_Pasts(self),
            use_cache=True,
            logits_to_keep=torch.tensor(rows, device=self.device),
        ).logits
        return logits_1RV[0].float()  # type: ignore[no-any-return]

    def groups(self) -> Iterator[tuple[slice, Adapter]]:
        """Row ranges of the current layer, each with the adapter that applies to it."""
        if self.packing.only is not None:
            adapter = self._chunks[self.packing.only].adapter if self._chunks else None
            if adapter:
                yield slice(None), adapter
            return
        for chunk, end in _placed(self._chunks):
            if chunk.adapter:
                yield slice(end - len(chunk.token_ids), end), chunk.adapter

    def up_to(self, layer: int) -> None:
        """All layers run: transformers' modules are called as a whole."""

    def keep_hidden(self, layer: int, hidden_RH: torch.Tensor) -> None:
        for chunk, end in _placed(self._chunks):
            if chunk.hidden_layer == layer:
                chunk.hidden = hidden_RH[end - 1].float().cpu().clone()

    def _packed(self, sequences: list[list[int]]) -> torch.Tensor:
        """Log-probs of every position, computed in two chunks."""
        caches = [self.new_cache() for _ in sequences]
        parts: list[list[torch.Tensor]] = [[] for _ in sequences]
        for start, end in ((0, 0.6), (0.6, 1.0)):
            pieces = [ids[int(start * len(ids)) : int(end * len(ids))] for ids in sequences]
            logits = self.forward(
                [Chunk(ids, cache, None, len(ids)) for ids, cache in zip(pieces, caches, strict=True)]
            )
            for part, rows in zip(parts, logits.split([len(ids) for ids in pieces]), strict=True):
                part.append(rows.log_softmax(-1))
        return torch.cat([torch.cat(part) for part in parts])


class _Adapting:
    """Forward hook that adds each row's adapter to a linear layer's output."""

    def __init__(self, decoder: GeneralDecoder, name: str) -> None:
        self._decoder, self._name = decoder, name

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        for rows, adapter in self._decoder.groups():
            if low_rank := adapter.get((0, self._name)):
                y_RO = output.view(-1, output.shape[-1])
                low_rank.add_to(y_RO[rows], inputs[0].reshape(-1, inputs[0].shape[-1])[rows])


class _Keeping:
    def __init__(self, decoder: GeneralDecoder, layer: int) -> None:
        self._decoder, self._layer = decoder, layer

    def __call__(self, module: torch.nn.Module, inputs: object, output: Any) -> None:
        hidden_1RH = output[0] if isinstance(output, tuple) else output
        self._decoder.keep_hidden(self._layer, hidden_1RH[0])


def _placed(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, int]]:
    """Each chunk with the index after its last row."""
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        yield chunk, end
