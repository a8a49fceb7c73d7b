"""The newest step as gauges, in a file that the server's ``/metrics`` includes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

FILE = "learn.prom"


class PrometheusSink:
    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in {"step": float(step), **metrics}.items():
            if name not in self._gauges:
                text = f"{name.replace('_', ' ')} of the newest step"
                self._gauges[name] = Gauge(f"openclaw_rl_learn_{name}", text, registry=self._registry)
            self._gauges[name].set(value)
        write_to_textfile(str(self._path), self._registry)

    def close(self) -> None:
        """The file stays: it holds the newest step."""
