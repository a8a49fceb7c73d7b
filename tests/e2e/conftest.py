"""One real server with the real default model for all end-to-end tests that do not end it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from openclaw_rl.testing import ServerProcess
from tests.conftest import locked

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    kernel = os.environ.get("OPENCLAW_RL_KERNEL", "auto")
    home = tmp_path_factory.mktemp("e2e") / "home"
    # Without the judge, whose work would show beside that of the requests under test.
    with ServerProcess(home, "--no-learn", "--kernel", kernel) as server:
        yield server


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def openai_client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def node_client(require: Callable[[str, str], Path]) -> Path:
    """A folder with the pinned npm clients and what uses them, kept between runs."""
    node, npm = require("node", "nodejs"), require("npm", "npm")
    assert node.exists()
    source = Path(__file__).parent
    pinned = (source / "package.json").read_text()
    cache = Path(os.environ.get("OPENCLAW_RL_CACHE") or Path.home() / ".cache" / "openclaw-rl")
    folder = cache / "test-node-client"
    stamp = folder / "installed.json"
    with locked(folder):
        if not stamp.exists() or stamp.read_text() != pinned:
            shutil.copy(source / "package.json", folder)
            subprocess.run(
                [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"],
                cwd=folder,
                check=True,
                timeout=300,
            )
            stamp.write_text(pinned)
        for script in (source / "client.mjs", *(source.parents[1] / "examples" / "clients").glob("*.mjs")):
            # Another worker may be running the script that is there.
            copied = shutil.copy(script, folder / f"{script.name}.new")
            os.replace(copied, folder / script.name)
    return folder
