"""OpenTelemetry gauges; the exporter has its own variables, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EVERY_MS = 15_000


class OtelSink:
    def __init__(self, home: Path, reader: Any = None) -> None:
        """``reader`` replaces the HTTP exporter."""
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ValueError("the sink 'otel' needs its packages: pip install 'openclaw-rl[otel]'") from None
        resource = Resource.create({"service.name": "openclaw-rl-learn"})
        self._provider = MeterProvider(metric_readers=[reader or _over_http()], resource=resource)
        self._meter = self._provider.get_meter("openclaw_rl")
        self._gauges: dict[str, Any] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in {"step": float(step), **metrics}.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"openclaw_rl.learn.{name}")
            self._gauges[name].set(value)

    def close(self) -> None:
        self._provider.shutdown()


def _over_http() -> Any:
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise ValueError("the sink 'otel' needs its packages: pip install 'openclaw-rl[otel]'") from None
    return PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=_EVERY_MS)
