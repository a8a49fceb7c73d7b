"""Exports a version for other programs: as a PEFT adapter, or merged into the base.

An export is complete or absent, and never mixes with existing files in the target.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openclaw_rl.train.policies import MANIFEST
from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE

_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "generation_config.json",
    "vocab*",
    "merges*",
)


def export_peft(policy: Path, target: Path) -> None:
    """Export the adapter, without the trainer's state."""
    if not (policy / ADAPTER_FILE).exists():
        raise ValueError("this version was trained with all weights and has no adapter; use --format merged")
    with filling(target) as work:
        for name in (ADAPTER_FILE, ADAPTER_CONFIG, MANIFEST):
            shutil.copy(policy / name, work / name)


def export_merged(policy: Path, base: Path, target: Path) -> None:
    """Export an fp32 checkpoint that needs neither this package nor PEFT."""
    with filling(target) as work:
        merged_model(policy, base).save_pretrained(work)
        copy_tokenizer(base, work)
        shutil.copy(policy / MANIFEST, work / MANIFEST)


@contextmanager
def filling(target: Path) -> Iterator[Path]:
    """A work folder whose files move to the target once all are written."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"{target} is there and not empty; choose another folder, or remove it first")
    target.mkdir(parents=True, exist_ok=True)
    work = target / ".part"
    work.mkdir()
    try:
        yield work
        for file in sorted(work.iterdir()):
            file.rename(target / file.name)
    finally:
        shutil.rmtree(work)


def copy_tokenizer(base: Path, target: Path) -> None:
    for pattern in _TOKENIZER:
        for file in base.glob(pattern):
            shutil.copy(file, target / file.name)


def merged_model(policy: Path, base: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not (policy / ADAPTER_FILE).exists():
        return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    _check_base(policy, model)
    return PeftModel.from_pretrained(model, policy).merge_and_unload()


def _check_base(policy: Path, model: Any) -> None:
    """Checked here because PEFT only warns about missing layers."""
    changes = {module: (b.shape[0], a.shape[1]) for module, (a, b) in _factors(policy).items()}
    kinds = {module.rpartition(".")[2] for module in changes}
    shapes = {name.removesuffix(".weight"): tuple(p.shape) for name, p in model.named_parameters()}
    if changes != {module: s for module, s in shapes.items() if module.rpartition(".")[2] in kinds}:
        trained_from = json.loads((policy / ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
        raise ValueError(
            "this version was trained from another model; "
            f"name that one, which it calls {trained_from}, with --model"
        )


def difference(first: Path | None, second: Path | None) -> Iterator[tuple[str, float, float | None]]:
    """Per module: the norm of the difference between two adapters, absolute and relative to the first.

    Compares the products B·A, the change an adapter makes to a weight; None is the base, which has no change.
    """
    one, two = _factors(first), _factors(second)
    for name in sorted(one.keys() | two.keys()):
        before = _norm([(1.0, one[name])]) if name in one else 0.0
        terms = [(sign, factors[name]) for sign, factors in ((-1.0, one), (1.0, two)) if name in factors]
        norm = _norm(terms)
        yield name, norm, norm / before if before else None


def _norm(terms: list[tuple[float, tuple[Any, Any]]]) -> float:
    """Norm of a sum of products B·A without forming them: |BA|² is the sum of the entries of BᵀB∘AAᵀ."""
    import torch

    a_KI = torch.cat([a for _, (a, _) in terms])
    b_OK = torch.cat([sign * b for sign, (_, b) in terms], dim=1)
    return float(((b_OK.T @ b_OK) * (a_KI @ a_KI.T)).sum().clamp(min=0).sqrt())


def _factors(policy: Path | None) -> dict[str, tuple[Any, Any]]:
    """Module → A and B, with the adapter's scale in B; fp64, since consecutive versions differ little."""
    if policy is None:
        return {}
    from safetensors.torch import load_file

    if not (policy / ADAPTER_FILE).exists():
        raise ValueError(f"version {policy.name} was trained with all weights; only adapters can be compared")
    config = json.loads((policy / ADAPTER_CONFIG).read_text())
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(policy / ADAPTER_FILE)
    found = {}
    for name, a_KI in tensors.items():
        if ".lora_A." in name:
            b_OK = tensors[name.replace(".lora_A.", ".lora_B.")]
            module = name.removeprefix("base_model.model.").partition(".lora_A")[0]
            found[module] = (a_KI.double(), scale * b_OK.double())
    return found
