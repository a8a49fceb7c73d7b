"""LoRA adapters: which layers get one (``--lora-targets``), and PEFT's names for its files."""

from __future__ import annotations

ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
ALL = "all-linear"
_ATTENTION, _MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
#: Names in other model families; a model uses one set or the other.
_ATTENTION += ["qkv_proj", "dense", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
_MLP += ["gate_up_proj", "fc1", "fc2"]
_GROUPS = {"attention": _ATTENTION, "mlp": _MLP}


def lora_modules(targets: str) -> str | list[str]:
    """Layer names, or PEFT's word for all of them. ValueError for targets that the engine cannot serve."""
    if targets.strip() == ALL:
        return ALL
    names: set[str] = set()
    for target in (part.strip() for part in targets.split(",")):
        if target not in (*_GROUPS, *_ATTENTION, *_MLP):
            known = ", ".join((ALL, *_GROUPS, *_ATTENTION, *_MLP))
            raise ValueError(f"unknown lora target {target!r}; known: {known}")
        names.update(_GROUPS.get(target, [target]))
    return sorted(names)
