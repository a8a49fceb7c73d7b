"""Training: turns a batch of examples into new weights; a gate decides whether they may serve.

Trainers by name: a new trainer is one file and one line in ``TRAINERS``; a class outside this package is
named by its dotted path. A trainer's capabilities are known before it is built, so unsupported settings are
rejected at startup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from openclaw_rl.fireworks_service import check_name
from openclaw_rl.models import pick_device
from openclaw_rl.plugins import create, find, imported
from openclaw_rl.settings import TrainConfig, extended
from openclaw_rl.sizes import sized
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.losses import LOSSES
from openclaw_rl.types import GpuOffer, Trainer, TrainerCapabilities

__all__ = [
    "FIREWORKS",
    "LOCAL",
    "TINKER",
    "TRAINERS",
    "TrainerParts",
    "capabilities_of",
    "check_settings",
    "create_trainer",
]


@dataclass(frozen=True, slots=True)
class TrainerParts:
    """Arguments for building a trainer."""

    model: Path
    """The base model's folder."""
    name: str
    """The base model's name in published adapters."""
    settings: TrainConfig
    frozen_linears: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """``train_base`` -> what replaces a frozen layer with a faster or smaller one, if the engine has such."""
    on_gpu: Callable[[], GpuOffer | None] | None = None
    """What the engine shares of its GPU."""
    num_live: Callable[[], int] | None = None
    """The engine's number of unfinished requests of users."""


#: What the trainers of this package can do, known without their modules.
LOCAL = TrainerCapabilities(
    frozenset(LOSSES),
    custom_losses=True,
    full_weights=True,
    kl_to_base=True,
    averages=True,
    chooses_layers=True,
)
TINKER = TrainerCapabilities(frozenset(LOSSES), custom_losses=True, makes="tinker")
FIREWORKS = replace(TINKER, makes="fireworks")


class _Local:
    """The embedded trainer; torch and transformers are imported when it is built."""

    capabilities = LOCAL
    options_type = LocalTrainerOptions

    def check_settings(self, settings: TrainConfig) -> None:
        pick_device(settings.train_device)
        self._options(settings, "")

    def __call__(self, parts: TrainerParts) -> Trainer:
        from openclaw_rl.train.beside import Beside
        from openclaw_rl.train.local import LocalTrainer

        options = self._options(parts.settings, parts.name)
        frozen, beside = parts.frozen_linears.get(options.train_base), Beside(parts.on_gpu, parts.num_live)
        return LocalTrainer(parts.model, options, frozen, beside=beside)

    def _options(self, settings: TrainConfig, name: str) -> LocalTrainerOptions:
        return extended(LocalTrainerOptions, settings, settings.trainer_options, name=name)


@dataclass(frozen=True)
class _Remote:
    """A trainer on a server; torch is imported when it is built."""

    module: str
    trainer: str
    capabilities: TrainerCapabilities
    check: Callable[[Mapping[str, Any]], None] = lambda own: None

    @property
    def options_type(self) -> Any:
        return self._of_module(f"{self.trainer}Options")

    def __call__(self, parts: TrainerParts) -> Trainer:
        own = parts.settings.trainer_options
        self.check(own)
        options = extended(self.options_type, parts.settings, own, name=parts.name)
        return cast(Trainer, self._of_module(self.trainer)(options))

    def check_settings(self, settings: TrainConfig) -> None:
        self.check(settings.trainer_options)

    def _of_module(self, name: str) -> Any:
        return imported(f"openclaw_rl.train.{self.module}:{name}")


#: An entry's optional ``check_settings`` rejects unsupported settings before the model is located.
TRAINERS: dict[str, Any] = {
    "local": _Local(),
    "tinker": _Remote("tinker", "TinkerTrainer", TINKER),
    "fireworks": _Remote("fireworks", "FireworksTrainer", FIREWORKS, check_name),
}


def capabilities_of(name: str) -> TrainerCapabilities:
    found: TrainerCapabilities | None = getattr(find("trainer", name, TRAINERS), "capabilities", None)
    if found is None:
        raise ValueError(f"the trainer {name!r} does not say what it can do: give it 'capabilities'")
    return found


def check_settings(settings: TrainConfig) -> None:
    """Raise ValueError for an unknown trainer, or for settings that the trainer rejects."""
    maker, able = find("trainer", settings.trainer, TRAINERS), capabilities_of(settings.trainer)
    usual = TrainConfig()
    for flag, stated in (
        ("--kl-coefficient", settings.kl_coefficient and not able.kl_to_base),
        ("--average-decay", settings.average_decay and not able.averages),
        ("--lora-targets", settings.lora_targets != usual.lora_targets and not able.chooses_layers),
        ("--lora-alpha", settings.lora_alpha != usual.lora_alpha and not able.chooses_layers),
    ):
        if stated:
            raise ValueError(f"{flag} is not for --trainer {settings.trainer}; leave it out")
    getattr(maker, "check_settings", lambda settings: None)(settings)


def create_trainer(parts: TrainerParts) -> Trainer:
    parts = replace(parts, settings=sized(parts.settings, parts.model))
    trainer: Trainer = create("trainer", parts.settings.trainer, TRAINERS, parts)
    return trainer
