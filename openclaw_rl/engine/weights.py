"""A checkpoint folder as named tensors, memory-mapped, plus the facts in its config.

On a CPU the tensors are views of the file's pages, so every process that opens the same
checkpoint shares one copy in RAM. Architectures with a fast path are named here; others run through
transformers' own modules (``general.py``), which rejects by name those it cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.model_folder import read_config
from openclaw_rl.models import eos_ids

if TYPE_CHECKING:
    import torch

#: Families with a fast path. All have RMS norm, rotary positions, grouped attention and a gated MLP.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a decoder."""

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
    inv_freq: torch.Tensor | None
    """Rotary frequencies, for the fast path."""
    rope_scale: float
    eos_ids: frozenset[int]
    model_type: str
    architecture: str
    is_fast: bool
    """Whether our own decoder runs it, rather than transformers' modules."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the config of a local folder; raises ValueError with a remedy if it is not a decoder's."""
    try:
        config = read_config(path)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; {_REMEDY}") from None
    except OSError as error:
        raise _damaged(path / "config.json", error) from None
    architecture = (config.architectures or ["unknown"])[0]
    slides = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    is_fast = architecture in ARCHITECTURES and not slides
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads = getattr(text, "num_attention_heads", None)
    if not heads:
        raise ValueError(f"The local engine cannot run {architecture} ({path}): {_NO_DECODER}. {_REMEDY}.")
    shape = Shape(
        num_layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        num_heads=heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocab=text.vocab_size,
        context_length=_context_length(text),
        norm_eps=text.rms_norm_eps if is_fast else 0.0,
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        tied=bool(config.tie_word_embeddings),
    )
    inv_freq, rope_scale = _rope(config) if is_fast else (None, 1.0)
    ids = frozenset(eos_ids(path))
    return Checkpoint(path, shape, inv_freq, rope_scale, ids, config.model_type, architecture, is_fast)


_NO_DECODER = "its config describes no decoder with attention"
_REMEDY = "Choose another model, or another engine with --engine"


def cannot_run(checkpoint: Checkpoint, why: str) -> ValueError:
    return ValueError(
        f"The local engine cannot run {checkpoint.architecture} ({checkpoint.path}): {why}. {_REMEDY}."
    )


def _damaged(file: Path, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(
        f"{file} is damaged ({why}); remove its folder, and the next start gets the model again"
    )


def _context_length(config: Any) -> int:
    """Where rotary frequencies change beyond some length, the context ends there: they would change for every
    sequence of a batch, and for keys that are already computed."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        stated = rope.get("original_max_position_embeddings")
        return int(stated or getattr(config, "original_max_position_embeddings", 0) or 0) or int(
            config.max_position_embeddings
        )
    return int(config.max_position_embeddings)


def _rope(config: Any) -> tuple[torch.Tensor, float]:
    """Rotary frequencies as transformers computes them, whatever scaling the config asks for.

    Without scaling they are computed here: importing a model's module slows every start.
    """
    import torch

    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)), 1.0
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
            raise _damaged(file, error) from None
    return tensors
