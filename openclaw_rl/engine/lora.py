"""LoRA adapters beside the frozen base: many versions at once, none of them merged.

An adapter is read from a PEFT folder. Projections that share an input (q, k, v) are joined:
their A matrices are stacked and their B matrices placed block-diagonally, so a joined projection
costs two small products.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    for layer in range(num_layers):
        for projection, modules in PROJECTIONS.items():
            parts = [_part(tensors, f"model.layers.{layer}.{module}", config, used) for module in modules]
            for part, width in zip(parts, widths[projection], strict=True):
                if part and (part[0].shape[1], part[1].shape[0]) != (input_widths[projection], width):
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
    for name, (num_inputs, num_outputs) in widths.items():
        if part := _part(tensors, name, config, used):
            if (part[0].shape[1], part[1].shape[0]) != (num_inputs, num_outputs):
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


def _part(
    tensors: dict[str, np.ndarray], module: str, config: dict[str, object], used: set[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    prefix = f"base_model.model.{module}"
    names = (f"{prefix}.lora_A.weight", f"{prefix}.lora_B.weight")
    if names[0] not in tensors:
        return None
    used.update(names)
    a_KI, b_OK = (tensors[name].astype(np.float32) for name in names)
    rank = a_KI.shape[0]
    alpha = float(config["lora_alpha"])  # type: ignore[arg-type]
    return a_KI, b_OK * (alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _join(
    parts: Sequence[tuple[np.ndarray, np.ndarray] | None],
    widths: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
) -> LowRank:
    a_KI = np.concatenate([part[0] for part in parts if part])
    b_KO = np.zeros((a_KI.shape[0], sum(widths)), np.float32)
    placed: list[tuple[int, int, int, int]] = []
    row = column = 0
    for part, width in zip(parts, widths, strict=True):
        if part:
            rank = part[0].shape[0]
            b_KO[row : row + rank, column : column + width] = part[1].T
            placed.append((row, row + rank, column, column + width))
            row += rank
        column += width
    a, b = (torch.from_numpy(x).to(device=device, dtype=dtype) for x in (a_KI, b_KO))
    return LowRank(a, b, torch.tensor(placed))
