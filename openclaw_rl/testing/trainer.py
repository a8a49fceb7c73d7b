"""A trainer without a model: its weights are one number, and what it was given can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw_rl.train.losses import LOSSES
from openclaw_rl.types import Batch, Json, StepReport, TrainerCapabilities, Weights

_FILE = "scripted.json"
_RATE = 1e-3


class ScriptedTrainer:
    """Trainer protocol. ``batches`` keeps every batch as it came; a step is as long as its scale."""

    capabilities = TrainerCapabilities(frozenset(LOSSES))

    def __init__(self, breaks_at: int | None = None) -> None:
        """``breaks_at``: the number of the step, from 1, whose loss is not finite."""
        self.batches: list[Batch] = []
        self.state: Json = {}
        self._breaks_at, self._weight = breaks_at, 0.0

    def resume(self, weights: Weights | None) -> None:
        saved = {} if weights is None else json.loads((weights.folder / _FILE).read_text())
        self._weight, self.state = saved.get("weight", 0.0), saved.get("state", {})

    def step(self, batch: Batch, version: int) -> StepReport:
        if not isinstance(batch.loss, str) or batch.loss not in self.capabilities.losses:
            raise ValueError(f"the trainer has no loss {batch.loss!r}; it has: {', '.join(LOSSES)}")
        self.batches.append(batch)
        examples, finite = batch.examples, len(self.batches) != self._breaks_at
        loss = -sum(float(example.signal_NK.mean()) for example in examples) / len(examples) - self._weight
        self._weight += batch.scale
        return StepReport(
            loss=loss if finite else float("nan"),
            grad_norm=1.0,
            finite=finite,
            learning_rate=_RATE * batch.scale,
            num_samples=len(examples),
            num_tokens=sum(len(each.prompt_ids) + len(each.reply_ids) for each in examples),
            num_reply_tokens=sum(len(each.reply_ids) for each in examples),
            mismatch=None,
            ratio=1.0,
            forward_s=0.0,
            backward_s=0.0,
            total_s=0.0,
        )

    def save(self, folder: Path, state: Json) -> str | None:
        text = json.dumps({"weight": self._weight, "state": state})
        (folder / _FILE).write_text(text)
        self.state = json.loads(text)["state"]
        return None
