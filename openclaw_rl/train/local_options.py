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
    """Tokens per micro-batch, whose activations are in memory at once; 0: by the model's size."""
    train_dtype: Literal["fp32", "bf16"] = "fp32"
    """Precision of the trainer's weights."""
    train_base: Literal["as-is", "int4"] = "as-is"
    """Frozen weights under adapters: as-is (the trainer's precision) or int4, which takes far less memory."""
    train_threads: Annotated[int, Ge(0)] = 0
    """CPU threads of the trainer; 0: torch's default. They run at a lower priority than serving."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's betas."""
    checkpoint_tokens: int = 1024
    """For rows with more tokens, as many layers as necessary recompute activations in the backward pass."""
    activation_gib: float = 0.0
    """Memory limit for activations, in GiB; overrides ``checkpoint_tokens`` unless 0."""
    name: str = ""
    """The base model's name in published adapters, rather than its path on this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune == "full" and self.train_base == "int4":
            raise ValueError("--train-base int4 is for adapters: all weights are not trained in 4 bits")
