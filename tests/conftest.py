"""What every test may use: system commands that must be there, and the real default model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

Require = Callable[[str, str], Path]


def find_command(command: str) -> Path | None:
    """On the PATH, or where Debian keeps PostgreSQL's server commands (the newest version)."""
    if found := shutil.which(command):
        return Path(found)
    installed = Path("/usr/lib/postgresql").glob(f"*/bin/{command}")
    return max(installed, key=lambda path: float(path.parts[4]), default=None)


@pytest.fixture(scope="session")
def require() -> Require:
    """``require("initdb", "postgresql")`` gives the command's path, or skips the test.

    With ``CI=true`` it fails instead: there, a skipped test would be a hole nobody sees.
    """

    def require_command(command: str, debian_package: str) -> Path:
        if (path := find_command(command)) is not None:
            return path
        message = f"{command} is missing: sudo apt-get install -y {debian_package}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)

    return require_command


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model in the user's normal cache, so that a machine converts it only once."""
    return resolve_model(DEFAULT_MODEL, default_cache_dir())
