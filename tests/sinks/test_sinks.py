"""One contract for all sinks, and what each of them writes."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from openclaw_rl.plugins import create
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.sinks import SINKS, Fan, create_sinks, step_metrics
from openclaw_rl.sinks.otel import OtelSink
from openclaw_rl.types import Sink

GATE = {"passed": True, "reason": "", "checks": [
    {"name": "held-out turns", "value": 0.25, "bound": -0.1, "passed": True}]}  # fmt: skip
METRICS = step_metrics({"loss": 0.5, "finite": True, "mismatch": None}, GATE, [1, -1, 1])


class Run:
    """Stands in for a run of Weights & Biases, whose package needs an account."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.lines.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb_run(monkeypatch: pytest.MonkeyPatch) -> Run:
    run, module = Run(), ModuleType("wandb")
    module.init = lambda **settings: run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return run


def make(name: str, home: Path) -> Sink:
    if name == "otel":
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        return OtelSink(home, InMemoryMetricReader())
    return create("metrics sink", name, SINKS, home)


def test_metrics_are_flat_names_and_numbers() -> None:
    named = {"loss": 0.5, "finite": 1.0, "gate_held_out_turns": 0.25, "gate_passed": 1.0}
    assert dict(METRICS) == {**named, "reward": pytest.approx(1 / 3)}


@pytest.mark.parametrize("name", SINKS)
def test_every_sink_takes_steps_and_closes(name: str, tmp_path: Path, wandb_run: Run) -> None:
    sink = make(name, tmp_path)
    sink.log(METRICS, 1)
    sink.log({**METRICS, "new": 2.0}, 2)
    sink.close()
    assert name in ("wandb", "otel") or any(path.stat().st_size for path in tmp_path.rglob("*"))


def test_jsonl_has_a_line_a_step(tmp_path: Path) -> None:
    for step in (1, 2):  # a process that starts again goes on
        make("jsonl", tmp_path).log(METRICS, step)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.5), (2, 0.5)]


def test_prometheus_is_handed_on_by_the_server(tmp_path: Path) -> None:
    make("prometheus", tmp_path).log(METRICS, 7)
    shown = Metrics().render({}, tmp_path / "learn.prom").decode()
    families = {family.name: family for family in text_string_to_metric_families(shown)}
    assert families["openclaw_rl_learn_step"].samples[0].value == 7
    assert families["openclaw_rl_learn_reward"].samples[0].value == pytest.approx(1 / 3)
    assert "openclaw_rl_requests" in families
    assert b"openclaw_rl_requests" in Metrics().render({}, tmp_path / "not there")


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    sink = make("tensorboard", tmp_path)
    sink.log({"loss": 0.5, "reward": 1.0}, 300)
    sink.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [Event.FromString(record) for record in records(file.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    scalars = [
        (event.step, value.tag, value.simple_value) for event in events for value in event.summary.value
    ]
    assert scalars == [(300, "loss", 0.5), (300, "reward", 1.0)]


def records(data: bytes) -> Iterator[bytes]:
    """Of an event file: length, its checksum, the record, its checksum."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_tensorboard_says_which_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'openclaw-rl\[tensorboard\]'"):
        make("tensorboard", tmp_path)


def test_wandb_goes_on_with_one_run(tmp_path: Path, wandb_run: Run) -> None:
    for _ in range(2):
        sink = make("wandb", tmp_path)
        sink.log(METRICS, 3)
        sink.close()
    assert wandb_run.lines[0] == (3, METRICS)
    assert wandb_run.finished
    assert re.fullmatch("[0-9a-f]{8}", (tmp_path / "wandb-run").read_text())


def test_opentelemetry_has_gauges(tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    OtelSink(tmp_path, reader).log({"loss": 0.5}, 4)
    data: Any = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    assert {m.name: m.data.data_points[0].value for m in metrics} == {
        "openclaw_rl.learn.step": 4.0, "openclaw_rl.learn.loss": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["wandb", "otel"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("wandb", "opentelemetry.sdk.metrics"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"openclaw-rl\\[{name}\\]"):
        create_sinks(name, tmp_path)


def test_names_are_checked_and_a_broken_sink_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="unknown metrics sink 'csv'; known: jsonl"):
        create_sinks("jsonl,csv", tmp_path)
    create_sinks("", tmp_path).log(METRICS, 1)
    gone = make("jsonl", tmp_path / "not there")
    kept = make("jsonl", tmp_path)
    fan = Fan([gone, kept])
    fan.log(METRICS, 1)
    fan.log(METRICS, 2)
    fan.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert caplog.text.count("no longer go to JsonlSink") == 1
