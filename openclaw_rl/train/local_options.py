"""Settings of the embedded trainer, apart from its code: they are read and checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from openclaw_rl.settings import TrainConfig


@dataclass(frozen=True)
class LocalTrainerOptions(TrainConfig):
    """The training settings, plus those of this trainer: ``[train.local]``."""

    micro_batch_tokens: Annotated[int, Ge(0)] = 0
    """Tokens per micro-batch, whose activations are in memory at once; 0: by model size or GPU memory."""
    train_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the trainer's weights: fp32, bf16, or auto (bf16 on a GPU)."""
    train_base: Literal["as-is", "int4"] = "as-is"
    """Frozen weights under adapters: as-is (the trainer's precision) or int4, which takes far less memory."""
    train_threads: Annotated[int, Ge(0)] = 0
    """CPU threads of the trainer; 0: torch's default. They run at a lower priority than serving."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's betas."""
    checkpoint_tokens: int = 1024
    """On a CPU, for rows with more tokens, as many layers as necessary recompute their activations."""
    activation_gib: float = 0.0
    """Memory limit for activations, in GiB; overrides ``checkpoint_tokens`` unless 0."""
    train_gpu_gib: Annotated[float, Ge(0)] = 0.0
    """The trainer's memory on a GPU, its weights included, in GiB; 0: what the engine leaves of the card."""
    fused: bool = True
    """Whether decoder layers run as fused functions on a GPU (Llama, Mistral, Qwen2 and Qwen3)."""
    name: str = ""
    """The base model's name in published adapters, rather than its path on this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune == "full" and self.train_base == "int4":
            raise ValueError("--train-base int4 is for adapters: all weights are not trained in 4 bits")
