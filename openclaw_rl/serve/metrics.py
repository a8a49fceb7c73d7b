"""Prometheus metrics. Each instance has its own registry, so that two gateways in one process do not mix."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_MAX_NAMES = 200


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "openclaw_rl_requests",
            "Requests by dialect and status",
            ["dialect", "status"],
            registry=self.registry,
        )
        self.ignored_fields = Counter(
            "openclaw_rl_ignored_fields", "Request fields we do not know", ["field"], registry=self.registry
        )
        self._ignored_names: set[str] = set()
        self.tokens = Counter("openclaw_rl_tokens", "Tokens", ["kind"], registry=self.registry)
        self.first_token = Histogram(
            "openclaw_rl_first_token_seconds",
            "Arrival to first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "openclaw_rl_request_seconds", "Arrival to last token", buckets=_SECONDS, registry=self.registry
        )
        self.gauges = {
            name: Gauge(f"openclaw_rl_{name}", text, registry=self.registry)
            for name, text in (
                ("running", "Sequences being generated or scored"),
                ("waiting", "Sequences waiting for a place"),
                ("cached_tokens", "Tokens whose keys and values are kept"),
                ("policy_version", "Version that new requests get"),
                ("turns_recorded", "Turns written to the ledger since start"),
                ("turns_unsaved", "Turns waiting in memory for the ledger to come back"),
                ("turns_lost", "Turns that could not be written"),
            )
        }

    def count_ignored(self, field: str) -> None:
        """Clients choose the names, so their number and length are limited."""
        name = field[:64].encode("ascii", "backslashreplace").decode()
        if name not in self._ignored_names and len(self._ignored_names) >= _MAX_NAMES:
            name = "(other)"
        self._ignored_names.add(name)
        self.ignored_fields.labels(name).inc()

    def render(self, values: dict[str, float], learned: Path | None = None) -> bytes:
        """``learned`` is the learn process's metrics file in the same format; it is appended."""
        for name, value in values.items():
            self.gauges[name].set(value)
        with suppress(OSError):
            return generate_latest(self.registry) + (learned.read_bytes() if learned else b"")
        return generate_latest(self.registry)
