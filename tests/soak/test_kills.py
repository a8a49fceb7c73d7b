"""Processes killed at random under load, as ``kills`` does it: nothing acknowledged is lost or doubled.

``make test-soak`` kills 200 times and prints the seeds; SOAK_KILLS and SOAK_SEED say otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

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


def run_kills(*arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.soak.kills", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(process.stdout)
    return [json.loads(line) for line in process.stdout.splitlines()]
