"""Wheels as users install them, on a machine without a compiler: with the kernels inside, and without."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.engine.levels import LEVELS

ROOT = Path(__file__).parents[2]
MACHINE = platform.machine()

pytestmark = [
    pytest.mark.wheels,
    pytest.mark.skipif(platform.system() != "Linux", reason="the wheels of other systems are built there"),
]

START = """
import sys
from pathlib import Path

import pytest
import torch

import openclaw_rl
from openclaw_rl.engine import build
from openclaw_rl.engine.build import Unavailable
from openclaw_rl.engine.levels import levels_here
from openclaw_rl.engine.native import load_native
from openclaw_rl.models import default_cache_dir

assert Path(openclaw_rl.__file__).is_relative_to(sys.prefix), openclaw_rl.__file__
assert build.find_compilers() == []
torch.manual_seed(0)
"""

WITH_KERNELS = """
from openclaw_rl.engine.kernels import native_bf16

weight, x = torch.randn(64, 96).bfloat16().float(), torch.randn(3, 96)
for level in levels_here():
    product = native_bf16(load_native(level.name), [weight], [None])(x)
    assert torch.allclose(product, x @ weight.T, atol=1e-4), level
    assert str(build.PREBUILT / f"native-{level.name}.so") in Path("/proc/self/maps").read_text()
assert load_native().level is levels_here()[0]
assert list(default_cache_dir().iterdir()) == []
"""

WITHOUT_KERNELS = """
from openclaw_rl.engine.choose import choose_kernel
from openclaw_rl.engine.kernels import kernel_set
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.testing import tiny_model

with pytest.raises(Unavailable, match="no C compiler .* was found; with one, the engine is faster"):
    load_native()
assert not build.PREBUILT.exists()
cpu, shape = torch.device("cpu"), (checkpoint := read_checkpoint(tiny_model(Path("model")))).shape
choice = choose_kernel(checkpoint, cpu, torch.float32, "auto")
assert "native" not in choice.name
assert any(reason.startswith("native: not on this machine (no C compiler") for reason in choice.reasons)
decoder = Decoder(checkpoint, cpu, torch.float32, kernel_set(choice.name))
cache = SequenceCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, cpu, torch.float32)
assert decoder.forward([Chunk([5, 6, 7], cache, None)]).isfinite().all()
"""


@pytest.fixture(scope="session")
def wheels(require: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("gcc", "build-essential")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "scripts" / "build-wheels", "--out", folder], check=True)
    return folder


def wheel_for(wheels: Path, platform_tag: str) -> Path:
    (wheel,) = wheels.glob(f"openclaw_rl-*-py3-none-{platform_tag}.whl")
    return wheel


def run_installed(wheel: Path, folder: Path, code: str) -> None:
    """In an environment with this wheel, and behind it this one's packages; no compiler is on the path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    # Named in a .pth file, a folder comes last, and its own .pth files, such as the checkout's, are not read.
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "bin").mkdir()
    (folder / "cache").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    environment |= {"PATH": str(folder / "bin"), "OPENCLAW_RL_CACHE": str(folder / "cache")}
    command = [python, "-I", "-c", START + code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_with_kernels_needs_no_compiler(wheels: Path, tmp_path: Path) -> None:
    run_installed(wheel_for(wheels, f"manylinux_2_28_{MACHINE}"), tmp_path, WITH_KERNELS)


def test_without_kernels_and_compiler_torch_computes(wheels: Path, tmp_path: Path) -> None:
    run_installed(wheel_for(wheels, "any"), tmp_path, WITHOUT_KERNELS)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_level_of_the_machine_is_inside(wheels: Path, machine: str) -> None:
    expected = {level.name for level in LEVELS.values() if level.machine == machine}
    prefix, suffix = "openclaw_rl/engine/prebuilt/native-", ".so"
    with zipfile.ZipFile(wheel_for(wheels, f"manylinux_2_28_{machine}")) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("openclaw_rl/engine/prebuilt/")]
        assert {name.removeprefix(prefix).removesuffix(suffix) for name in names} == expected
        for name in names:  # e_machine of the ELF header
            assert wheel.read(name)[18:20] == {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}[machine]


def test_the_checkout_has_no_built_kernels(wheels: Path) -> None:
    """They would be used in place of changed sources."""
    assert not (ROOT / "openclaw_rl" / "engine" / "prebuilt").exists()
    assert not (ROOT / "setup.py").exists()


def test_sources_travel_with_every_distribution(wheels: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        assert "openclaw_rl/engine/csrc/native.c" in zipfile.ZipFile(wheel).namelist()
    assert len(list(wheels.glob("*.tar.gz"))) == 1
