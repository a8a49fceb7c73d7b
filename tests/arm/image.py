"""A call of the kernels with all the memory it reads and writes, so that another program can repeat it.

The records are those that the engine makes; their pointers are followed here as ``native.c`` follows them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from openclaw_rl.engine.native import Model, Native, NativeBatch, Product

Function = Literal["product", "head", "layers"]
#: Bytes of a tile's group, as in products.h; of a pair of bf16 tiles' inputs.
_GROUP_BYTES = (320, 544, 1024)
_PRODUCT, _LAYER, _SPAN, _ADAPTER, _LOW_RANK, _PART = 40, 192, 56, 24, 40, 32


class Image:
    """Taken before the call; ``finish`` keeps what the call wrote."""

    def __init__(self, name: str, function: Function, arguments: Sequence[int], tolerance: float) -> None:
        """``tolerance``: how far other compilers and processors may be from this call's results, relative to
        the largest of them."""
        self.name, self.tolerance = name, tolerance
        self._function = ("product", "head", "layers").index(function)
        self._addresses, self._segments = [0], [struct.pack(f"{len(arguments)}q", *arguments)]
        self._relocations: list[tuple[int, int, int]] = []
        self._outputs: dict[int, np.ndarray] = {}

    def number(self, segment: int, offset: int) -> int:
        return int(struct.unpack_from("q", self._segments[segment], offset)[0])

    def follow(self, segment: int, offset: int, size: int, *, is_output: bool = False) -> int:
        """The segment that the pointer there leads to; a pointer to nothing stays as it is."""
        address = self.number(segment, offset)
        if not address or not size:
            return 0
        self._addresses.append(address)
        self._segments.append(ctypes.string_at(address, size))
        target = len(self._segments) - 1
        self._relocations.append((segment, offset, target))
        if is_output:
            self._outputs[target] = np.empty(0)
        return target

    def follow_product(self, segment: int, offset: int) -> tuple[int, int]:
        kind, size, width = (self.number(segment, offset + 16 + 8 * i) for i in range(3))
        self.follow(segment, offset, width // 16 * (size // 32) * _GROUP_BYTES[kind])
        self.follow(segment, offset + 8, 4 * width)
        return size, width

    def finish(self) -> Image:
        for target in self._outputs:
            after = ctypes.string_at(self._addresses[target], len(self._segments[target]))
            self._outputs[target] = np.frombuffer(after, np.float32)
        return self

    def to_bytes(self) -> bytes:
        sizes = [len(segment) for segment in self._segments]
        relocations = [number for relocation in self._relocations for number in relocation]
        numbers = [self._function, len(sizes), len(self._relocations), *sizes, *relocations]
        return struct.pack(f"{len(numbers)}q", *numbers) + b"".join(self._segments)

    def split(self, result: bytes) -> tuple[list[tuple[np.ndarray, np.ndarray]], bytes]:
        """(what was written there, what was written here) for each output, and the results of later calls."""
        pairs, at = [], 0
        for target, segment in enumerate(self._segments):
            if target in self._outputs:
                theirs = np.frombuffer(result[at : at + len(segment)], np.float32)
                pairs.append((theirs, self._outputs[target]))
            at += len(segment)
        return pairs, result[at:]


def product_image(name: str, native: Native, product: Product, x_RI: torch.Tensor) -> Image:
    """Sums of integers are exact, and the operations on floats have one order."""
    y_RO = torch.empty(len(x_RI), product.width)
    arguments = (product.pointer, x_RI.data_ptr(), y_RO.data_ptr(), len(x_RI))
    image = Image(name, "product", arguments, tolerance=0)
    _follow_inputs(image, x_RI, y_RO)
    y_RO.copy_(native.product(product, x_RI))
    return image.finish()


def head_image(
    name: str, native: Native, product: Product, x_RI: torch.Tensor, weight_VI: torch.Tensor, num_exact: int
) -> Image:
    logits_RV = torch.empty(len(x_RI), product.width)
    pointers = (product.pointer, x_RI.data_ptr(), logits_RV.data_ptr())
    image = Image(name, "head", (*pointers, len(x_RI), weight_VI.data_ptr(), num_exact), tolerance=1e-6)
    _follow_inputs(image, x_RI, logits_RV)
    image.follow(0, 32, 4 * weight_VI.numel())
    logits_RV.copy_(native.head(product, x_RI, weight_VI, num_exact))
    return image.finish()


def _follow_inputs(image: Image, x_RI: torch.Tensor, y_RO: torch.Tensor) -> None:
    image.follow_product(image.follow(0, 0, _PRODUCT), 0)
    image.follow(0, 8, 4 * x_RI.numel())
    image.follow(0, 16, 4 * y_RO.numel(), is_output=True)


class RecordingNative:
    """Stands where a decoder has its ``Native``; keeps an image of its latest pass."""

    def __init__(self, name: str, native: Native, context_length: int, tolerance: float) -> None:
        self._name, self._native, self._context_length = name, native, context_length
        self._tolerance = tolerance
        self.image: Image | None = None

    def room_floats(self, batch: NativeBatch) -> int:
        return self._native.room_floats(batch)

    def run_layers(self, batch: NativeBatch, room: torch.Tensor) -> None:
        image = Image(self._name, "layers", [ctypes.addressof(batch)], self._tolerance)
        _follow_batch(image, batch, Model.from_address(batch.model), self._context_length)
        self._native.run_layers(batch, room)
        self.image = image.finish()


def _follow_batch(image: Image, batch: NativeBatch, model: Model, context_length: int) -> None:
    root = image.follow(0, 0, ctypes.sizeof(NativeBatch))
    record = image.follow(root, NativeBatch.model.offset, ctypes.sizeof(Model))
    widths = _follow_model(image, record, model, context_length)
    image.follow(root, NativeBatch.hidden_RI.offset, 4 * batch.rows * model.hidden, is_output=True)
    spans = image.follow(root, NativeBatch.spans.offset, batch.num_spans * _SPAN)
    for at in range(0, batch.num_spans * _SPAN, _SPAN):
        capacity = image.number(spans, at + 24)
        floats = model.num_layers * 2 * model.key_heads * capacity * model.size
        image.follow(spans, at + 16, 4 * floats, is_output=True)
        image.follow(spans, at + 48, 4 * model.hidden, is_output=True)
    adapters = image.follow(root, NativeBatch.adapters.offset, batch.num_adapters * _ADAPTER)
    for at in range(0, batch.num_adapters * _ADAPTER, _ADAPTER):
        low_ranks = image.follow(adapters, at + 16, len(widths) * _LOW_RANK)
        for index, (size, width) in enumerate(widths):
            num_parts, rank = (image.number(low_ranks, index * _LOW_RANK + 24 + 8 * i) for i in range(2))
            image.follow(low_ranks, index * _LOW_RANK, 4 * rank * size)
            image.follow(low_ranks, index * _LOW_RANK + 8, 4 * rank * width)
            image.follow(low_ranks, index * _LOW_RANK + 16, num_parts * _PART)


def _follow_model(image: Image, record: int, model: Model, context_length: int) -> list[tuple[int, int]]:
    """Inputs and outputs of each projection of each layer."""
    for table in (Model.cos_TD, Model.sin_TD):
        image.follow(record, table.offset, 4 * context_length * model.size)
    layers = image.follow(record, Model.layers.offset, model.num_layers * _LAYER)
    widths = []
    for at in range(0, model.num_layers * _LAYER, _LAYER):
        for index, floats in enumerate((model.hidden, model.hidden, model.size, model.size)):
            image.follow(layers, at + 8 * index, 4 * floats)
        widths += [image.follow_product(layers, at + 32 + _PRODUCT * index) for index in range(4)]
    return widths
