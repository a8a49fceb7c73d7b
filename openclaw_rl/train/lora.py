"""Chooses the layers of a model that get an adapter, adds it, and stores it in half of the space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from openclaw_rl.settings import TrainConfig
from openclaw_rl.types.lora import ALL, lora_modules


def with_lora(base: Any, options: TrainConfig, name: str) -> Any:
    """``name`` is the base model's name in published adapters; by default its path."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        target_modules=target_modules(base, options.lora_targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    if name:
        model.peft_config["default"].base_model_name_or_path = name
    return model


def target_modules(base: Any, targets: str) -> str | list[str]:
    """For PEFT. Experts of a mixture get no adapter: they are not linear layers, and none of our engines
    could serve it."""
    named = lora_modules(targets)
    has_experts = any(name.endswith(".experts") for name, _ in base.named_modules())
    if isinstance(named, str) and not has_experts and base.get_decoder() is base.model:
        return named
    paths = _linear_layers(base)
    if has_experts:
        paths = [path for path in paths if ".mlp." not in path and ".experts." not in path]
    if named != ALL:
        paths = [path for path in paths if path.rpartition(".")[2] in named]
    if not paths:
        reason = "; of a mixture of experts, attention can be trained" if has_experts else ""
        raise ValueError(f"{type(base).__name__} has no layers for --lora-targets {targets}{reason}")
    # Full paths if other parts of the model, such as a vision encoder, may have layers of the same names.
    is_all_text = base.get_decoder() is base.model
    return sorted({path.rpartition(".")[2] for path in paths} if is_all_text else paths)


def _linear_layers(base: Any) -> list[str]:
    decoder = base.get_decoder()
    inside = {id(module) for module in decoder.modules()}
    return [
        name
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and id(module) in inside
    ]


def store_in_fp16(file: Path) -> None:
    """The trainer goes on in fp32, but everybody else, the checks included, reads what is stored here.

    fp16 has eleven significant bits, which is far finer than a training step. Weights that are too large for
    it stay as they are.
    """
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.half() for name, tensor in load_file(file).items()}
    if all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        save_file(tensors, file, {"format": "pt"})
