"""Python bindings (ctypes) for the kernels in ``csrc/``: products, the head, and all layers in one call.

Records that C reads are rows of 64-bit integers (pointers and sizes), made once where possible.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from openclaw_rl.engine.build import Unavailable, open_library
from openclaw_rl.engine.levels import LEVELS, Level, levels_here

#: As in isa.h: outputs per tile, and inputs that share a scale. Head sizes are whole tiles too.
TILE, GROUP = 16, 32
Kind = Literal["int4", "int8", "bf16"]
_KINDS: dict[Kind, int] = {"int4": 0, "int8": 1, "bf16": 2}


class Product:
    """Weights packed for ``native.c``, and their bias."""

    def __init__(
        self, kind: Kind, tiles: torch.Tensor, bias: torch.Tensor | None, size: int, width: int
    ) -> None:
        self._tiles, self._bias = tiles, None if bias is None else bias.float().contiguous()
        self.size, self.width = size, width
        pointers = (tiles.data_ptr(), 0 if self._bias is None else self._bias.data_ptr())
        self.record = np.array([*pointers, _KINDS[kind], size, width], dtype=np.int64)
        self.pointer = self.record.ctypes.data


class Native:
    """One level's library. Tensors are fp32 and contiguous."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self._library = open_library(level)
        pointer, long = ctypes.c_void_p, ctypes.c_long
        for name, arguments, result in (
            ("room_floats", [pointer], long),
            ("run_layers", [pointer, pointer], None),
            ("product_floats", [pointer, long], long),
            ("product", [pointer, pointer, pointer, long, pointer], None),
            ("head", [pointer] * 4 + [long] * 2 + [pointer], None),
        ):
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, result

    def product(self, product: Product, x_RI: torch.Tensor) -> torch.Tensor:
        x_RI = x_RI.float().contiguous()
        rows = x_RI.shape[0]
        y_RO = torch.empty(rows, product.width)
        room = torch.empty(self._library.product_floats(product.pointer, rows))
        self._library.product(product.pointer, x_RI.data_ptr(), y_RO.data_ptr(), rows, room.data_ptr())
        return y_RO

    def head(
        self, product: Product, x_RI: torch.Tensor, weight_VI: torch.Tensor, num_exact: int
    ) -> torch.Tensor:
        """Logits; the likeliest ``num_exact`` or more are recomputed with ``weight_VI`` in full precision."""
        x_RI = x_RI.float().contiguous()
        rows = x_RI.shape[0]
        logits_RV = torch.empty(rows, product.width)
        room = torch.empty(self._library.product_floats(product.pointer, rows))
        pointers = (x_RI.data_ptr(), weight_VI.data_ptr(), logits_RV.data_ptr())
        self._library.head(product.pointer, *pointers, rows, num_exact, room.data_ptr())
        return logits_RV

    def room_floats(self, batch: NativeBatch) -> int:
        """Floats that the batch's pass needs for intermediate results."""
        return int(self._library.room_floats(ctypes.addressof(batch)))

    def run_layers(self, batch: NativeBatch, room: torch.Tensor) -> None:
        """Run all layers over the batch's rows, in place."""
        self._library.run_layers(ctypes.addressof(batch), room.data_ptr())


@cache
def _load_once(level: Level) -> Native | Unavailable:
    """Failures are cached too: they are not retried in this process."""
    try:
        return Native(level)
    except Unavailable as problem:
        return problem


def load_native(level_name: str | None = None) -> Native:
    """The best level this CPU supports, or the named one; raises ``Unavailable`` with the reason."""
    here = levels_here()
    if not here:
        raise Unavailable("this processor has neither AVX2 nor NEON")
    if level_name is not None and level_name not in LEVELS:
        raise ValueError(f"unknown level {level_name!r}; known: {', '.join(LEVELS)}")
    level = here[0] if level_name is None else LEVELS[level_name]
    if level not in here:
        raise Unavailable(f"this processor lacks {level.title}")
    found = _load_once(level)
    if isinstance(found, Unavailable):
        raise found
    return found


# --- records of a pass -----------------------------------------------------------------------------


class Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "cos_TD", "sin_TD")),
        *((name, ctypes.c_long) for name in ("num_layers", "hidden", "heads", "key_heads", "size", "inner")),
        ("eps", ctypes.c_float),
    ]


class NativeBatch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("model", "hidden_RI", "spans", "adapters")),
        *((name, ctypes.c_long) for name in ("rows", "num_spans", "num_adapters", "most_rank")),
    ]


def records(rows: Sequence[Sequence[int]]) -> Any:
    """An array of C structs with 64-bit fields only; keep it alive while its address is in use."""
    return np.array(rows, dtype=np.int64)


# --- packing ---------------------------------------------------------------------------------------


def pack_int4(codes_OI: torch.Tensor, scale_OG: torch.Tensor, low_OG: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 15, a scale and a lowest value for each group of inputs."""
    out, size = check_tiles(codes_OI)
    # Output 16 t + o and input 32 g + 8 v + 4 h + p are half h of byte (o, p) in vector v of tile (t, g).
    halves = codes_OI.to(torch.uint8).view(out // 16, 16, size // 32, 4, 2, 4).permute(4, 0, 2, 3, 1, 5)
    codes = (halves[0] | (halves[1] << 4)).flatten(2)
    return torch.cat([codes, _half_bytes(scale_OG), _half_bytes(low_OG)], dim=-1).contiguous()


def pack_int8(codes_OI: torch.Tensor, scale_OG: torch.Tensor) -> torch.Tensor:
    """Codes -127 to 127 and a scale for each group of inputs."""
    out, size = check_tiles(codes_OI)
    codes = (
        codes_OI.to(torch.int8).view(torch.uint8).view(out // 16, 16, size // 32, 8, 4).permute(0, 2, 3, 1, 4)
    )
    return torch.cat([codes.flatten(2), _half_bytes(scale_OG)], dim=-1).contiguous()


def pack_bf16(weight_OI: torch.Tensor) -> torch.Tensor:
    out, size = check_tiles(weight_OI)
    return weight_OI.bfloat16().view(out // 16, 16, size).transpose(1, 2).contiguous()


def _half_bytes(numbers_OG: torch.Tensor) -> torch.Tensor:
    """fp16 numbers of the 16 outputs of each tile, as bytes."""
    out, groups = numbers_OG.shape
    return numbers_OG.half().view(out // 16, 16, groups).transpose(1, 2).contiguous().view(torch.uint8)


def check_tiles(weight_OI: torch.Tensor) -> tuple[int, int]:
    rows, columns = weight_OI.shape
    if rows % TILE or columns % GROUP:
        raise Unavailable(f"a matrix of {rows} x {columns} does not divide into tiles")
    return rows, columns
