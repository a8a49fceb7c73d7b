"""Metrics sinks: where each step's metrics go. One class per file, one line per sink in ``SINKS``.

A sink that fails is logged once and dropped: logging never affects training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openclaw_rl.plugins import create
from openclaw_rl.types import Json, Sink

log = logging.getLogger(__name__)


#: By path, so that no sink needs another one's packages.
SINKS: dict[str, Callable[[Path], Sink] | str] = {
    "jsonl": "openclaw_rl.sinks.jsonl:JsonlSink",
    "prometheus": "openclaw_rl.sinks.prometheus:PrometheusSink",
    "tensorboard": "openclaw_rl.sinks.tensorboard:TensorBoardSink",
    "wandb": "openclaw_rl.sinks.wandb:WandbSink",
    "otel": "openclaw_rl.sinks.otel:OtelSink",
}


class Fan:
    """All configured sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for sink in list(self._sinks):
            try:
                sink.log(metrics, step)
            except Exception as error:
                self._sinks.remove(sink)
                log.error("metrics no longer go to %s: %s", type(sink).__name__, error)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                log.warning("could not close metrics sink %s: %s", type(sink).__name__, error)


def create_sinks(names: str, home: Path) -> Fan:
    """``names`` is comma-separated; each is a key of ``SINKS`` or pkg.module:Class."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    return Fan([create("metrics sink", name, SINKS, home) for name in chosen])


def step_metrics(report: Json, gate: Json, rewards: Sequence[int]) -> dict[str, float]:
    """A step's metrics after its version was gated, as flat names and numbers."""
    flat = {name: float(value) for name, value in report.items() if isinstance(value, int | float)}
    for check in gate.get("checks", ()):
        flat[f"gate_{check['name'].replace(' ', '_').replace('-', '_')}"] = float(check["value"])
    flat["gate_passed"] = float(bool(gate.get("passed")))
    if rewards:
        flat["reward"] = sum(rewards) / len(rewards)
    return flat
