"""A checkpoint folder as named tensors, memory-mapped, plus the facts its config states.

On a CPU the tensors are views of the file's pages, so every process that opens the same
checkpoint shares one copy in RAM. Architectures the local engine cannot run are refused here,
by name, before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.models import eos_ids

if TYPE_CHECKING:
    import torch

#: Decoder families with one shape: RMS norm, rotary positions, grouped attention, gated MLP.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a decoder, named once."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    context_length: int
    norm_eps: float
    has_qk_norm: bool
    tied: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    shape: Shape
    inv_freq: torch.Tensor
    rope_scale: float
    eos_ids: frozenset[int]
    model_type: str


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the config of a local folder; raises ValueError with a remedy if we cannot run it."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    architecture = (config.architectures or ["unknown"])[0]
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ValueError(
            f"The local engine cannot run {architecture} ({path}). It runs: {known}. "
            "Choose such a model, or another engine with --engine."
        )
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        raise ValueError(f"{path} uses sliding-window attention, which the local engine does not implement.")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = Shape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab=config.vocab_size,
        context_length=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        tied=bool(config.tie_word_embeddings),
    )
    inv_freq, rope_scale = _rope(config)
    return Checkpoint(path, shape, inv_freq, rope_scale, frozenset(eos_ids(path)), config.model_type)


def _rope(config: Any) -> tuple[torch.Tensor, float]:
    """Rotary frequencies as transformers computes them, whatever scaling the config asks for."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    return rotary.inv_freq.float().clone(), float(rotary.attention_scaling)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's safetensors files, memory-mapped."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path} holds no .safetensors file; convert the checkpoint to safetensors first.")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                    tensors[name] = opened.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(
                f"{file} is damaged ({error}); remove its folder, and the next start gets the model again"
            ) from None
    return tensors
