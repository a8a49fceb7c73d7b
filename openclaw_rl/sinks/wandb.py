"""Weights & Biases, configured by its own variables: ``WANDB_API_KEY``, ``WANDB_PROJECT``, ``WANDB_MODE``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WandbSink:
    def __init__(self, home: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError("the sink 'wandb' needs its package: pip install 'openclaw-rl[wandb]'") from None
        project = os.environ.get("WANDB_PROJECT", "openclaw-rl")
        # One run per data folder, however often the process starts.
        self._run: Any = wandb.init(project=project, dir=str(home), id=_run_id(home), resume="allow")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _run_id(home: Path) -> str:
    file = home / "wandb-run"
    if not file.exists():
        file.write_text(os.urandom(4).hex())
    return file.read_text().strip()
