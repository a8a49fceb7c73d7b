"""A real server on the default model, and the real OpenClaw in front of it, with our plugin or without."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ServerProcess
from openclaw_rl.train.local import LocalTrainer
from tests.openclaw.client import OpenClaw, free_port, install
from tests.train.versions import OPTIONS, Home

Json = dict[str, Any]


class World:
    """Both programs, and what the server's API says about what it saw."""

    def __init__(self, server: ServerProcess, claw: OpenClaw, has_plugin: bool, model_path: Path) -> None:
        self.server, self.claw, self.has_plugin, self.model_path = server, claw, has_plugin, model_path

    @property
    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.server.key}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=60)

    def turns(self, session_id: str) -> list[Json]:
        with self.http as http:
            answer = http.get(f"/v1/sessions/{session_id}", params={"text": "true", "limit": 200})
        return [] if answer.status_code == 404 else answer.json()["turns"]  # type: ignore[no-any-return]

    def sessions(self) -> list[str]:
        with self.http as http:
            return [s["id"] for s in http.get("/v1/sessions").json()["data"] if s["user"] == "default"]

    def status(self) -> Json:
        with self.http as http:
            return http.get("/v1/status").json()  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=[True, False], ids=["with the plugin", "without any header"])
def world(
    request: pytest.FixtureRequest,
    model_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    require: Callable[[str, str], Path],
) -> Iterator[World]:
    assert require("npm", "npm")
    folder = tmp_path_factory.mktemp("openclaw")
    make_version(folder / "home", model_path)
    server = ServerProcess(
        folder / "home",
        "--no-learn",
        *("--generate", "scripted:generate"),
        environment={"PYTHONPATH": str(Path(__file__).parent), "PORT": str(free_port())},
    )
    with server:
        claw = OpenClaw(folder / "claw", install(), server)
        claw.set_up(plugin=request.param)
        claw.run("config", "validate")
        try:
            yield World(server, claw.start(), request.param, model_path)
        finally:
            claw.stop()
            shutil.rmtree(folder / "claw" / "tmp", ignore_errors=True)


def make_version(home: Path, model: Path) -> None:
    """Version 1, a step away from the base and not served yet."""
    home.mkdir()
    made = Home(home, LocalTrainer(model, OPTIONS))
    try:
        assert made.step() == 1
        made.policy_ledger.promote(0, "the base first")
    finally:
        made.close()
