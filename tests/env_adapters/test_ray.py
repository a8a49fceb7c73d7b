"""Environments on a real Ray, of this machine and through its client."""

from __future__ import annotations

import json
import os
import shutil
import socket
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


@pytest.mark.ray
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_through_the_client_of_a_cluster() -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            ports.append(found.getsockname()[1])
    head = [PYTHON.with_name("ray"), "start", "--head", f"--port={ports[0]}", "--num-cpus=2", "--block"]
    more = [f"--ray-client-server-port={ports[1]}", "--include-dashboard=false", "--disable-usage-stats"]
    cluster = subprocess.Popen(
        [*head, *more], env=VARIABLES, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        check(episodes(f"ray://127.0.0.1:{ports[1]}"))
    finally:
        cluster.terminate()
        cluster.wait(60)


def test_what_it_needs_is_said() -> None:
    with pytest.raises(ValueError, match=r"known: local, ray, ray://HOST"):
        environment_maker("terminal", EnvironmentParts(), "rey://somewhere")
    if shutil.which("ray") is None:
        with pytest.raises(ValueError, match=r"pip install 'openclaw-rl\[ray\]'"):
            environment_maker("terminal", EnvironmentParts(), "ray://127.0.0.1:1")
