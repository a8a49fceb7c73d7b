"""Training with Fireworks: as through the Tinker protocol, with what its client does in another way.

Its training calls are tested against SkyRL 0.3.0. What needs an account is untested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from openclaw_rl.fireworks_service import FireworksService
from openclaw_rl.train import FIREWORKS
from openclaw_rl.train.tinker import TinkerTrainer, TinkerTrainerOptions


@dataclass(frozen=True)
class FireworksTrainerOptions(TinkerTrainerOptions):
    """The training settings, plus those of Fireworks: ``[train.fireworks]``."""

    url: str = ""
    """A dedicated trainer's address; by default the serverless service."""
    base_model: str = ""
    """Fireworks' name of the model, such as accounts/fireworks/models/qwen3-8b."""


class FireworksTrainer(TinkerTrainer):
    """Trainer protocol over Fireworks' client."""

    capabilities = FIREWORKS
    kind: ClassVar = FireworksService()
    keeps_sessions: ClassVar = False
    """Its saved weights are sampled without the session that made them."""

    def _create(self, state: str | None) -> Any:
        """A saved state is loaded into a new model: dedicated trainers do not tell a state's shape."""
        o = self.options
        client = self._service.create_training_client(
            o.base_model, lora_rank=o.lora_rank, seed=o.seed, train_unembed=False
        )
        if state is not None:
            client.load_state_with_optimizer(state).result(o.patience_s)
        return client
