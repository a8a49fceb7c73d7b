"""TensorBoard: ``tensorboard --logdir ~/.openclaw-rl/tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardSink:
    """Event files in ``tensorboard/`` of the data folder, one per start of the process."""

    def __init__(self, home: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "the sink 'tensorboard' needs its package: pip install 'openclaw-rl[tensorboard]'"
            ) from None
        # It writes in its own thread; steps are rare, so each should show at once.
        self._writer: Any = SummaryWriter(str(home / "tensorboard"), flush_secs=1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
