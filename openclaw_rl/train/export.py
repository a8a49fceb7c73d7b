"""A version as something other programs load: a PEFT adapter, or the base with it merged in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openclaw_rl.train.policies import MANIFEST

_ADAPTER = "adapter_model.safetensors"
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "generation_config.json",
    "vocab*",
    "merges*",
)


def export_peft(policy: Path, target: Path) -> None:
    """The adapter's own files, without what only training needs."""
    if not (policy / _ADAPTER).exists():
        raise ValueError(f"{policy} holds all weights, not an adapter; export it as merged")
    target.mkdir(parents=True, exist_ok=True)
    for name in (_ADAPTER, "adapter_config.json", MANIFEST):
        shutil.copy(policy / name, target / name)


def export_merged(policy: Path, base: Path, target: Path) -> None:
    """A checkpoint that needs neither us nor PEFT."""
    target.mkdir(parents=True, exist_ok=True)
    merged_model(policy, base).save_pretrained(target)
    for pattern in _TOKENIZER:
        for file in base.glob(pattern):
            shutil.copy(file, target / file.name)
    shutil.copy(policy / MANIFEST, target / MANIFEST)


def merged_model(policy: Path, base: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if not (policy / _ADAPTER).exists():
        return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, policy).merge_and_unload()


def difference(first: Path | None, second: Path | None) -> Iterator[tuple[str, float, float]]:
    """Per module: the norm of what changed between two adapters, and its share of the first one's.

    Compared are the products B·A, the change an adapter makes to a weight; None is the base, which has none.
    """
    import torch

    one, two = _products(first), _products(second)
    for name in sorted(one.keys() | two.keys()):
        nothing = torch.zeros(())
        before, after = one.get(name, nothing), two.get(name, nothing)
        norm = float((after - before).norm())
        yield name, norm, norm / max(float(before.norm()), 1e-12)


def _products(policy: Path | None) -> dict[str, Any]:
    if policy is None:
        return {}
    from safetensors.torch import load_file

    if not (policy / _ADAPTER).exists():
        raise ValueError(f"{policy} holds all weights; only adapters can be compared")
    config = json.loads((policy / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(policy / _ADAPTER)
    found = {}
    for name, a_KI in tensors.items():
        if ".lora_A." in name:
            b_OK = tensors[name.replace(".lora_A.", ".lora_B.")]
            module = name.removeprefix("base_model.model.model.").partition(".lora_A")[0]
            found[module] = scale * (b_OK.float() @ a_KI.float())
    return found
