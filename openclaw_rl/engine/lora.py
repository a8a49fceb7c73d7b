"""LoRA adapters beside the frozen base: many versions at once, none of them merged.

An adapter is read from a PEFT folder. Projections that share an input (q, k, v) are joined:
their A matrices are stacked and their B matrices placed block-diagonally, so a joined projection
costs two small products.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file  # at import, so that the first load does not wait for it

from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE


@dataclass(frozen=True, slots=True)
class LowRank:
    """``y += (x @ a.T) @ b`` for one projection; the scale is already in ``b``."""

    a_KI: torch.Tensor
    b_KO: torch.Tensor
    parts_P4: torch.Tensor
    """Where ``b`` is not zero: (first rank, end, first column, end) of each joined projection."""

    def add_to(self, y_RO: torch.Tensor, x_RI: torch.Tensor) -> None:
        y_RO.addmm_(x_RI @ self.a_KI.T, self.b_KO)

    @property
    def record(self) -> tuple[int, int, int, int, int]:
        """The fields of the C struct of the same name, in ``products.h``."""
        pointers = self.a_KI.data_ptr(), self.b_KO.data_ptr(), self.parts_P4.data_ptr()
        return *pointers, len(self.parts_P4), len(self.a_KI)


class Adapter(dict[tuple[int, str], LowRank]):
    """(layer, projection) -> its low-rank part; absent where the adapter changes nothing."""

    @property
    def most_rank(self) -> int:
        return max((len(part.a_KI) for part in self.values()), default=0)

    def records(self, num_layers: int) -> np.ndarray:
        """Records of all projections of all layers for ``native.c``, made once: adapters are immutable."""
        if self._records is None:
            nothing = (0, 0, 0, 0, 0)
            places = [(layer, name) for layer in range(num_layers) for name in PROJECTIONS]
            found = [self[place].record if place in self else nothing for place in places]
            self._records = np.array(found, dtype=np.int64)
        return self._records

    _records: np.ndarray | None = None


#: Projection name -> the checkpoint's module names, in row order.
PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def entry_of(layer: int, projection: str) -> int:
    """A projection's place in tables of all projections of all layers."""
    return layer * len(PROJECTIONS) + list(PROJECTIONS).index(projection)


def load_adapter(
    path: Path,
    num_layers: int,
    widths: Mapping[str, Sequence[int]],
    input_widths: Mapping[str, int],
    device: torch.device,
    dtype: torch.dtype,
) -> Adapter:
    """Read a PEFT LoRA folder. ``widths`` gives the output rows of each projection's parts."""
    config, tensors = _read_files(path)
    used: set[str] = set()
    adapter = Adapter()
    with beside_decoding(device):
        for layer in range(num_layers):
            for projection, modules in PROJECTIONS.items():
                parts = [_part(tensors, f"model.layers.{layer}.{module}", config, used) for module in modules]
                for part, width in zip(parts, widths[projection], strict=True):
                    if part and part.shape != (input_widths[projection], width):
                        raise ValueError(f"{path} was trained from another model than the one being served.")
                if any(parts):
                    adapter[layer, projection] = _join(parts, widths[projection], device, dtype)
    if unused := sorted(set(tensors) - used):
        raise ValueError(f"{path} adapts modules the local engine does not know, such as {unused[0]}.")
    return adapter


def load_named(
    path: Path, widths: Mapping[str, tuple[int, int]], device: torch.device, dtype: torch.dtype
) -> Adapter:
    """The same by module name, for networks whose projections are not joined; all are at layer 0."""
    config, tensors = _read_files(path)
    used: set[str] = set()
    adapter = Adapter()
    with beside_decoding(device):
        for name, (num_inputs, num_outputs) in widths.items():
            if part := _part(tensors, name, config, used):
                if part.shape != (num_inputs, num_outputs):
                    raise ValueError(f"{path} was trained from another model than the one being served.")
                adapter[0, name] = _join([part], [num_outputs], device, dtype)
    if unused := sorted(set(tensors) - used):
        raise ValueError(f"{path} adapts modules that the model being served does not have: {unused[0]}.")
    return adapter


def _read_files(path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    # numpy, not torch: this runs beside the engine's thread, and a second thread that asks OpenMP for
    # workers would leave the engine's own waiting for a core.
    config = json.loads((path / ADAPTER_CONFIG).read_text())
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("modules_to_save"):
        raise ValueError(f"{path} is not a plain LoRA adapter; the local engine loads PEFT LoRA only.")
    try:
        return config, load_file(path / ADAPTER_FILE)
    except SafetensorError as error:
        raise ValueError(f"{path / ADAPTER_FILE} is damaged: {error}") from None


@contextmanager
def beside_decoding(device: torch.device) -> Iterator[None]:
    """Copies to a GPU take a stream of their own: on the default one each of several hundred would wait for
    the decoding step that runs, and decoding for it. What was copied is complete at the end."""
    if device.type != "cuda":
        yield
        return
    side = _side_stream(device)
    side.wait_stream(torch.cuda.default_stream(device))  # memory of an unloaded adapter may still be read
    with torch.cuda.stream(side):
        yield
    side.synchronize()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@dataclass(frozen=True, slots=True)
class _Part:
    """One module's matrices as they are stored."""

    a_KI: np.ndarray
    b_OK: np.ndarray
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Inputs and outputs of the module."""
        return self.a_KI.shape[1], self.b_OK.shape[0]


def _part(
    tensors: dict[str, np.ndarray], module: str, config: dict[str, object], used: set[str]
) -> _Part | None:
    prefix = f"base_model.model.{module}"
    names = (f"{prefix}.lora_A.weight", f"{prefix}.lora_B.weight")
    if names[0] not in tensors:
        return None
    used.update(names)
    a_KI, b_OK = (tensors[name] for name in names)
    rank = a_KI.shape[0]
    alpha = float(config["lora_alpha"])  # type: ignore[arg-type]
    return _Part(a_KI, b_OK, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _join(
    parts: Sequence[_Part | None], widths: Sequence[int], device: torch.device, dtype: torch.dtype
) -> LowRank:
    join = join_in_numpy if device.type == "cpu" else join_on_device
    a_KI, b_KO = join(parts, _places(parts, widths), sum(widths), device)
    places = torch.tensor([place for place in _places(parts, widths) if place is not None])
    return LowRank(a_KI.to(device=device, dtype=dtype), b_KO.to(device=device, dtype=dtype), places)


_Place = tuple[int, int, int, int]


def _places(parts: Sequence[_Part | None], widths: Sequence[int]) -> list[_Place | None]:
    """Where each part's ``b`` is in the joined one: (first rank, end, first column, end)."""
    placed: list[_Place | None] = []
    row = column = 0
    for part, width in zip(parts, widths, strict=True):
        rank = len(part.a_KI) if part else 0
        placed.append((row, row + rank, column, column + width) if part else None)
        row, column = row + rank, column + width
    return placed


def join_in_numpy(
    parts: Sequence[_Part | None], places: Sequence[_Place | None], width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    a_KI = np.concatenate([part.a_KI.astype(np.float32) for part in parts if part])
    b_KO = np.zeros((len(a_KI), width), np.float32)
    for part, place in zip(parts, places, strict=True):
        if part and place:
            b_KO[place[0] : place[1], place[2] : place[3]] = part.b_OK.T.astype(np.float32) * part.scale
    return torch.from_numpy(a_KI), torch.from_numpy(b_KO)


def join_on_device(
    parts: Sequence[_Part | None], places: Sequence[_Place | None], width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on a GPU, which converts what takes a CPU a good part of a second for a larger model."""
    a_KI = torch.cat([torch.from_numpy(part.a_KI).to(device).float() for part in parts if part])
    b_KO = torch.zeros(len(a_KI), width, device=device)
    for part, place in zip(parts, places, strict=True):
        if part and place:
            b_KO[place[0] : place[1], place[2] : place[3]] = (
                torch.from_numpy(part.b_OK).to(device).float().T * part.scale
            )
    return a_KI, b_KO
