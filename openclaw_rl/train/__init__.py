"""Training: turns a batch of examples into new weights; a gate decides whether they may serve.

Trainers by name: a new trainer is one file and one line in ``TRAINERS``; a class outside this package is
named by its dotted path. A trainer's capabilities are known before it is built, so unsupported settings are
rejected at startup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.models import pick_device
from openclaw_rl.plugins import create, find
from openclaw_rl.settings import TrainConfig, extended
from openclaw_rl.sizes import sized
from openclaw_rl.train.losses import LOSSES
from openclaw_rl.types import Trainer, TrainerCapabilities

__all__ = ["TRAINERS", "TrainerParts", "capabilities_of", "check_settings", "create_trainer"]


@dataclass(frozen=True, slots=True)
class TrainerParts:
    """Arguments for building a trainer."""

    model: Path
    """The base model's folder."""
    name: str
    """The base model's name in published adapters."""
    settings: TrainConfig
    frozen_linear: Callable[[Any], Any] | None = None
    """Replaces a frozen layer with a faster one, if the engine has such layers."""


class _Local:
    """The embedded trainer; torch and transformers are imported when it is built."""

    capabilities = TrainerCapabilities(frozenset(LOSSES), custom_losses=True, full_weights=True)

    def check_settings(self, settings: TrainConfig) -> None:
        pick_device(settings.train_device)

    def __call__(self, parts: TrainerParts) -> Trainer:
        from openclaw_rl.train.local import LocalTrainer, LocalTrainerOptions

        settings = parts.settings
        options = extended(LocalTrainerOptions, settings, settings.trainer_options, name=parts.name)
        return LocalTrainer(parts.model, options, parts.frozen_linear)


class _Tinker:
    """A Tinker protocol server; torch is imported when the trainer is built."""

    capabilities = TrainerCapabilities(frozenset(LOSSES), custom_losses=True, makes="tinker")

    def __call__(self, parts: TrainerParts) -> Trainer:
        from openclaw_rl.train.tinker import TinkerTrainer, TinkerTrainerOptions

        settings = parts.settings
        return TinkerTrainer(
            extended(TinkerTrainerOptions, settings, settings.trainer_options, name=parts.name)
        )


#: An entry's optional ``check_settings`` rejects unsupported settings before the model is located.
TRAINERS: dict[str, Any] = {"local": _Local(), "tinker": _Tinker()}


def capabilities_of(name: str) -> TrainerCapabilities:
    found: TrainerCapabilities | None = getattr(find("trainer", name, TRAINERS), "capabilities", None)
    if found is None:
        raise ValueError(f"the trainer {name!r} does not say what it can do: give it 'capabilities'")
    return found


def check_settings(settings: TrainConfig) -> None:
    """Raise ValueError for an unknown trainer, or for settings that the trainer rejects."""
    maker = find("trainer", settings.trainer, TRAINERS)
    capabilities_of(settings.trainer)
    getattr(maker, "check_settings", lambda settings: None)(settings)


def create_trainer(parts: TrainerParts) -> Trainer:
    parts = replace(parts, settings=sized(parts.settings, parts.model))
    trainer: Trainer = create("trainer", parts.settings.trainer, TRAINERS, parts)
    return trainer
