"""Metrics sinks: where each step's metrics go. One class per file, one line per sink in ``SINKS``.

A sink that fails is logged once and dropped: logging never affects training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from openclaw_rl.plugins import create
from openclaw_rl.types import Json, Sink

log = logging.getLogger(__name__)


def _lazy(module: str, name: str) -> Callable[[Path], Sink]:
    """Imported when it is used, so that no sink needs another one's packages."""

    def make(home: Path) -> Sink:
        sink: Sink = getattr(import_module(f"openclaw_rl.sinks.{module}"), name)(home)
        return sink

    return make


SINKS: dict[str, Callable[[Path], Sink]] = {
    "jsonl": _lazy("jsonl", "JsonlSink"),
    "prometheus": _lazy("prometheus", "PrometheusSink"),
    "tensorboard": _lazy("tensorboard", "TensorBoardSink"),
    "wandb": _lazy("wandb", "WandbSink"),
    "otel": _lazy("otel", "OtelSink"),
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
