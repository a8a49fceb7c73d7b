"""Tiny random networks of the families that people use, each in its own shape: a few layers of 64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB = 97
_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
_HYBRID = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SLIDING = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

#: Class of transformers' -> what its config says beyond the common numbers.
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": _HYBRID,
    "Qwen3_5MoeForCausalLM": {**_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3MoeForCausalLM": _EXPERTS,
    "GptOssForCausalLM": {**_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma3ForCausalLM": {**_SLIDING, "query_pre_attn_scalar": 16},
    "Gemma2ForCausalLM": {**_SLIDING, "query_pre_attn_scalar": 16},
    "MistralForCausalLM": {"sliding_window": 7},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "PhiForCausalLM": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "Phi3ForCausalLM": {"sliding_window": 7},
    "GraniteForCausalLM": {"logits_scaling": 4.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5},
    "LlamaForCausalLM": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def make_network(family: str, folder: Path, **numbers: Any) -> Path:
    """Weights far enough from zero that every part of the network counts."""
    import transformers

    torch.manual_seed(5)
    kind = getattr(transformers, family)
    config = kind.config_class(**{**_SMALL, **FAMILIES.get(family, {}), **numbers})
    config.architectures = [family]
    network = kind(config).float()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    network.save_pretrained(folder)
    return folder


def make_adapter(network: Path, folder: Path, seed: int) -> Path:
    """PEFT's own, on all layers that we train."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from openclaw_rl.train.lora import target_modules

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(network, dtype=torch.float32)
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules=target_modules(base, "all-linear"))
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def make_seeing_network(family: str, folder: Path) -> Path:
    """As such models are published: text and eyes in one checkpoint."""
    import transformers

    torch.manual_seed(6)
    kind = getattr(transformers, family)
    text = f"{family.removesuffix('ForConditionalGeneration')}ForCausalLM"
    eyes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if family.startswith("Qwen"):
        eyes = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
    config = kind.config_class(text_config={**_SMALL, **FAMILIES[text]}, vision_config=eyes)
    config.architectures = [family]
    network = kind(config).float()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    network.save_pretrained(folder)
    return folder
