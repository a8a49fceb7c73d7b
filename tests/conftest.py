"""What every test may use: system commands that must be there, and the real default model."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from safetensors.torch import load_file, save_file

from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

Require = Callable[[str, str], Path]

# Before torch is loaded: workers share the machine, so each of them, and each server that it starts, computes
# with its share of the cores.
if num_workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers)))

# An example may take as long as the machine needs for it.
settings.register_profile(
    "anywhere", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("anywhere")


#: A worker with the real model and a server beside it may take this much memory.
_WORKER_BYTES = 5 << 30


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, where memory allows: many tests wait for processes they started."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores + 1, memory // _WORKER_BYTES))


#: Files that take longest, in that order. Whichever of them began last would run on alone.
SLOWEST = (
    "e2e/test_learning.py", "learn/test_kill_learn.py", "evals/test_personalize.py",
    "e2e/test_fuzz.py",
    "judge/test_judges.py", "train/test_gate.py", "train/test_export.py", "e2e/test_kill.py",
    "e2e/test_stop.py", "e2e/test_python_client.py", "e2e/test_first_pages.py", "engine/test_native.py",
    "engine/test_kernels.py",
    "engine/test_scheduler.py", "learn/test_training.py", "engine/test_exactness.py",
    "capture/test_ledger.py", "e2e/test_personalize.py", "learn/test_examples.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, which take files in this order."""
    if num_workers:
        ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(SLOWEST)}
        items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


#: Layers of ``shallow_model``.
_SHALLOW = 4


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """What tests keep between runs is made by one worker; the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


@pytest.fixture(scope="session")
def shallow_model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's first four layers: its shapes, tokenizer and vocabulary in a fifth of the time."""
    folder = tmp_path_factory.mktemp("shallow") / "model"
    shutil.copytree(model_path, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": _SHALLOW}))
    tensors = load_file(model_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if _layer(name) < _SHALLOW}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def _layer(name: str) -> int:
    """0 for what belongs to no layer."""
    found = re.search(r"\.layers\.(\d+)\.", name)
    return int(found[1]) if found else 0
