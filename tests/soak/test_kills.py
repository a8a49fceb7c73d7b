"""Processes killed at random under load, as ``kills`` does it: nothing acknowledged is lost or doubled.

``make test-soak`` kills 200 times, and 50 times with the real model, and prints the seeds; SOAK_KILLS,
SOAK_REAL_KILLS and SOAK_SEED say otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

_RUNS = 2


@pytest.mark.soak
def test_kills_at_random_lose_and_double_nothing() -> None:
    kills = int(os.environ.get("SOAK_KILLS", "200"))
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 100_000))
    reports = run_kills("--kills", str(kills // _RUNS), "--seed", str(seed), "--runs", str(_RUNS))
    assert [report["failures"] for report in reports] == [[]] * _RUNS
    assert sum(report["kills"] for report in reports) >= kills // _RUNS * _RUNS
    assert all(report["checks"] > report["kills"] // 2 for report in reports)


@pytest.mark.soak
def test_kills_between_the_steps_of_the_real_model() -> None:
    """It learns and publishes in between; otherwise the kills would prove less."""
    kills = int(os.environ.get("SOAK_REAL_KILLS", "50"))
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 100_000))
    [report] = run_kills("--real", "--kills", str(kills), "--seed", str(seed))
    assert report["failures"] == []
    assert report["kills"] >= kills
    assert report["kills_after_new_steps"] > 0
    assert report["counts"]["trained"] > 0


def run_kills(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.soak.kills", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(process.stdout)
    return [json.loads(line) for line in process.stdout.splitlines()]
