"""What a model's size determines: its training defaults, and what it takes to run.

Sizes are read from the headers of safetensors files: no weights are loaded, and torch is not needed.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.settings import TrainConfig

T = TypeVar("T", bound=TrainConfig)

_MILLION, _BILLION = 10**6, 10**9
#: Vision modules.
_EYES = re.compile(r"\b(visual|vision_tower|vision_model|multi_modal_projector)\b")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Training defaults, for settings that are 0."""

    up_to: float
    """Largest number of parameters."""
    lora_rate: float
    full_rate: float
    micro_batch_tokens: int


#: The first row's rate for adapters is that of docs/lab/results.md. Larger networks need smaller steps, a
#: step of full weights changes far more than one of an adapter, and more tokens at once keep the GPU of a
#: larger network busy.
DEFAULTS = (
    Defaults(500 * _MILLION, lora_rate=1e-3, full_rate=5e-5, micro_batch_tokens=1024),
    Defaults(2 * _BILLION, lora_rate=4e-4, full_rate=2e-5, micro_batch_tokens=2048),
    Defaults(10 * _BILLION, lora_rate=2e-4, full_rate=1e-5, micro_batch_tokens=4096),
    Defaults(float("inf"), lora_rate=1e-4, full_rate=5e-6, micro_batch_tokens=4096),
)


def defaults_for(num_parameters: int) -> Defaults:
    return next(row for row in DEFAULTS if num_parameters <= row.up_to)


def defaults_of(model: Path) -> Defaults:
    """For the model in the folder; those of a large model if the weights are on another machine."""
    has_weights = any(model.glob("*.safetensors"))
    return defaults_for(size_of(model).num_parameters) if has_weights else DEFAULTS[-1]


def sized(settings: T, model: Path) -> T:
    """The training settings, with a learning rate of 0 replaced by the model's default."""
    if settings.learning_rate:
        return settings
    row = defaults_of(model)
    return replace(settings, learning_rate=row.full_rate if settings.finetune == "full" else row.lora_rate)


@dataclass(frozen=True, slots=True)
class Size:
    num_parameters: int
    num_active: int
    """Parameters that a token is multiplied by: neither the input embedding nor idle experts."""
    largest_dtype: str
    """The dtype of most parameters."""


def size_of(model: Path) -> Size:
    """The size of a folder's weights; ValueError if there are none."""
    config = json.loads((model / "config.json").read_text()) if (model / "config.json").exists() else {}
    config = config.get("text_config", config)
    num_experts = config.get("num_experts") or config.get("num_local_experts") or 1
    share = config.get("num_experts_per_tok", num_experts) / num_experts
    num_parameters, num_active, looked_up, has_head = 0, 0.0, 0, False
    dtypes: dict[str, int] = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in _header(file).items():
            count = 1
            for length in tensor["shape"]:
                count *= length
            num_parameters += count
            has_head |= name.startswith("lm_head")
            if "embed_tokens" in name:
                looked_up = count
            elif not _EYES.search(name):
                num_active += count * (share if ".experts." in name else 1)
            dtypes[tensor["dtype"]] = dtypes.get(tensor["dtype"], 0) + count
    if not num_parameters:
        raise ValueError(f"{model} holds no .safetensors file; convert the checkpoint to safetensors first.")
    # A tied head multiplies by the embedding.
    num_active += 0 if has_head else looked_up
    return Size(num_parameters, int(num_active), max(dtypes, key=lambda name: dtypes[name]))


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header: dict[str, Any] = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    return header
