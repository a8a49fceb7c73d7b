"""What the learn process sets up before it loads anything."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from openclaw_rl.processes.learning import wait_quietly


def test_the_trainers_threads_do_not_spin() -> None:
    environment: dict[str, str] = {}
    wait_quietly(environment)
    assert environment == {"GOMP_SPINCOUNT": "100"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_somebody_set_stays(name: str) -> None:
    environment = {name: "5"}
    wait_quietly(environment)
    assert environment == {name: "5"}


def test_torch_is_not_loaded_before() -> None:
    code = "import json, sys, openclaw_rl.processes.learning; print(json.dumps('torch' in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(found.stdout) is False
