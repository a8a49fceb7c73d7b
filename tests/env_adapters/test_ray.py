"""Environments on a real Ray of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs import EnvironmentParts, environment_maker

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
PYTHON = ROOT / ".venv-envs/ray/bin/python"
VARIABLES = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


def episodes(where: str) -> Any:
    ran = subprocess.run(
        [PYTHON, HERE / "ray_episodes.py", where], env=VARIABLES, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().rpartition("\n")[2])


def check(found: Any) -> None:
    assert found["done"] == [["1", True]] * 8, "each in a sandbox of its own, and acted once"
    assert "ActorDiedError" in found["failure"] or "RayActorError" in found["failure"], found["failure"]
    assert found["after"] == ["1", True]
    assert (found["leased"], found["left"]) == (0, 0)


@pytest.mark.ray
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_on_this_machine() -> None:
    check(episodes("ray"))


def test_what_it_needs_is_said() -> None:
    with pytest.raises(ValueError, match=r"known: local, ray, ray://HOST"):
        environment_maker("terminal", EnvironmentParts(), "rey://somewhere")
    if shutil.which("ray") is None:
        with pytest.raises(ValueError, match=r"pip install 'openclaw-rl\[ray\]'"):
            environment_maker("terminal", EnvironmentParts(), "ray://127.0.0.1:1")
