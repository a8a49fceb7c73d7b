"""Every metric that the Grafana dashboard asks for is one that the server or a step gives out."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from openclaw_rl.plugins import create
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.sinks import SINKS, step_metrics
from openclaw_rl.train import gate
from openclaw_rl.types import StepReport

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
#: Checks of the gate, as ``train/gate.py`` names them.
CHECKS = ("finite", "tool calls", "calls right", "broken replies", "on topic", "on topic at once", "in form",
          "length",
          "specificity", "strangeness", "held-out turns", "facts", "jobs")  # fmt: skip


def given_out(tmp_path: Path) -> set[str]:
    report = {field.name: 1.0 for field in fields(StepReport)}
    checks = [{"name": name, "value": 1.0} for name in CHECKS]
    sink = create("metrics sink", "prometheus", SINKS, tmp_path)
    sink.log(step_metrics(report, {"passed": True, "checks": checks}, [1]), 1)
    metrics = Metrics()
    metrics.requests.labels("chat", "200").inc()
    metrics.tokens.labels("completion").inc()
    text = metrics.render({}, tmp_path / "learn.prom").decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_every_metric_of_the_dashboard_exists(tmp_path: Path) -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [annotation["expr"] for annotation in board["annotations"]["list"]]
    expected = {name for expression in asked for name in re.findall(r"openclaw_rl_\w+", expression)}
    assert len(expected) > 15
    assert expected <= given_out(tmp_path)


def test_the_checks_named_here_are_the_gate_s() -> None:
    named = re.findall(r'(?:Check|_at_most|_at_least)\(\s*"([a-z -]+)"', inspect.getsource(gate))
    # Two are named in a table, one by a constant.
    assert {*named, "facts", "jobs", gate.IN_FORM} == set(CHECKS)
