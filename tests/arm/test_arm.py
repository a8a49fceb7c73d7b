"""The kernels for ARM, in an emulator, and those that Clang builds, against the AVX2 ones that GCC builds.

Calls of the kernels are written into a file (``image.py``), and a program for the other processor repeats
them (``driver.c``). Products are equal bit for bit; what is summed up in vectors depends on their width.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.engine.build import SOURCES, flags_of
from openclaw_rl.engine.kernels import kernel_set, native_bf16, native_int4
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.levels import LEVELS, levels_here
from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.native import Kind, Native, Product, load_native, pack_int8
from openclaw_rl.engine.native_layers import NativeLayers
from openclaw_rl.engine.weights import read_checkpoint
from tests.arm.image import Image, RecordingNative, head_image, product_image
from tests.engine.test_native import grid, random_adapter, random_model

CPU = torch.device("cpu")
HERE = [level.name for level in levels_here()]
DRIVER = Path(__file__).with_name("driver.c")
#: The oldest processor of each level, so that an instruction it lacks is an error.
PROCESSORS = {"dotprod": "neoverse-n1", "neon": "cortex-a53"}
#: Of a pass. Where inputs are rounded, a last bit that differs may become a step of 1/32639.
TOLERANCE = {"native": 1e-4, "native-bf16": 1e-5}
WARNINGS = ("-Wall", "-Wextra", "-Werror")

pytestmark = [
    pytest.mark.arm,
    pytest.mark.skipif("avx2" not in HERE, reason="compared with AVX2; on ARM, tests/engine has the rest"),
]
Require = Callable[[str, str], Path]


# --- calls ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calls:
    images: list[Image]
    file: Path


@pytest.fixture(scope="module")
def calls(require: Require, tmp_path_factory: pytest.TempPathFactory) -> Calls:
    require("cc", "build-essential")
    folder = tmp_path_factory.mktemp("calls")
    native = load_native("avx2")
    torch.manual_seed(0)
    images = [*products(native), extreme_inputs(native), refined_head(native), *passes(native, folder)]
    file = folder / "calls"
    file.write_bytes(b"".join(image.to_bytes() for image in images))
    return Calls(images, file)


def products(native: Native) -> list[Image]:
    images = []
    for bias in (None, torch.randn(176)):  # 176 outputs leave tiles over
        kinds: dict[Kind, Product] = {
            "int4": native_int4(native, [grid(176, 96)], [bias]).product,
            "int8": int8_product(176, 96, bias),
            "bf16": native_bf16(native, [torch.randn(176, 96)], [bias]).product,
        }
        for kind, product in kinds.items():
            for rows in (1, 2, 3, 8, 70):
                name = f"{kind}, {rows} rows, {'no ' if bias is None else ''}bias"
                images.append(product_image(name, native, product, torch.randn(rows, 96)))
    return images


def int8_product(width: int, size: int, bias: torch.Tensor | None) -> Product:
    codes, scale = torch.randint(-127, 128, (width, size)), torch.rand(width, size // 32).half().float()
    return Product("int8", pack_int8(codes, scale), bias, size, width)


def extreme_inputs(native: Native) -> Image:
    x = torch.zeros(6, 64)
    x[1], x[2], x[3, 7], x[4, 40] = 1e-35, 1e30, float("nan"), float("inf")
    x[5] = torch.tensor([1.0, -1.0]).repeat(32)  # both digits at their largest
    return product_image("extreme inputs", native, int8_product(32, 64, None), x)


def refined_head(native: Native) -> Image:
    weight = torch.randn(1008, 96)
    scale = (weight.view(1008, 3, 32).abs().amax(-1) / 127).half().float()
    codes = (weight / scale.repeat_interleave(32, -1)).round().clamp(-127, 127)
    product = Product("int8", pack_int8(codes, scale), None, 96, 1008)
    return head_image("head", native, product, torch.randn(5, 96), weight, 100)


def passes(native: Native, folder: Path) -> list[Image]:
    """Prompts and decoding in one batch, some with an adapter, some with a layer's state to keep."""
    shapes = {"qwen3": (6, 2, 64, True), "llama": (6, 1, 80, False)}
    return [
        layers_image(native, random_model(folder / name, *shape[:3], qk_norm=shape[3]), kernel, name)
        for name, shape in shapes.items()
        for kernel in TOLERANCE
    ]


def layers_image(native: Native, model: Path, kernel: str, name: str) -> Image:
    checkpoint = read_checkpoint(model)
    shape = checkpoint.shape
    decoder = Decoder(checkpoint, CPU, torch.float32, kernel_set(f"{kernel}@{native.level.name}"))
    title = f"layers of {name}, {kernel}"
    recording = RecordingNative(title, native, shape.context_length, TOLERANCE[kernel])
    decoder._native = NativeLayers(decoder, recording, 1 << 20)  # type: ignore[arg-type]
    adapter = random_adapter(decoder, 4, "o")
    sequences = [  # tokens before, new ones, adapter, layer whose state is kept
        (0, 40, None, None), (15, 1, adapter, 1), (300, 1, None, 2), (290, 5, adapter, 0),
        (16, 1, None, None),
    ]  # fmt: skip
    caches = [
        SequenceCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, CPU, torch.float32)
        for _ in sequences
    ]
    for (before, count, *_), cache in zip(sequences, caches, strict=True):
        cache.reserve(before + count)
        cache._kv_L2HTD.zero_()  # what happens to lie in memory is no result to compare
        if before:
            decoder.forward([Chunk(random_ids(before), cache, None, 0)])
    decoder.forward(
        [
            Chunk(random_ids(count), cache, chosen, hidden_layer=layer)
            for (_, count, chosen, layer), cache in zip(sequences, caches, strict=True)
        ]
    )
    assert recording.image is not None
    return recording.image


def random_ids(count: int) -> list[int]:
    return torch.randint(0, 512, (count,)).tolist()


# --- programs ------------------------------------------------------------------------------------------


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


def build_with_gcc(require: Require, level: str, folder: Path) -> Path:
    compiler = str(require("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"))
    flags = (*flags_of(compiler), *LEVELS[level].flags, *WARNINGS, f"-I{SOURCES}")
    run(compiler, *flags, "-fopenmp", "-static", DRIVER, "-o", folder / "driver", "-lm")
    return folder / "driver"


def build_with_clang(require: Require, level: str, folder: Path) -> Path:
    """Linked by GCC, without Clang's own OpenMP, so that it runs in one thread."""
    is_arm = LEVELS[level].machine == "aarch64"
    gcc = require("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross") if is_arm else "gcc"
    compiler = str(require("clang", "clang"))
    target = ("--target=aarch64-linux-gnu",) if is_arm else ()
    # Clang says where it does not follow a wish to vectorise, which is no fault.
    warnings = (*WARNINGS, "-Wno-pass-failed")
    flags = (*target, *flags_of(compiler), *LEVELS[level].flags, *warnings, f"-I{SOURCES}")
    run(compiler, *flags, "-fopenmp", "-c", SOURCES / "native.c", "-o", folder / "native.o")
    run(compiler, *flags, "-fopenmp-simd", "-Wno-source-uses-openmp", "-c", DRIVER, "-o", folder / "driver.o")
    run(gcc, "-static", folder / "driver.o", "-o", folder / "driver", "-lm")
    return folder / "driver"


def run_driver(require: Require, driver: Path, level: str, calls: Calls, num_threads: int) -> bytes:
    emulator: tuple[str | Path, ...] = ()
    if processor := PROCESSORS.get(level):
        emulator = (require("qemu-aarch64-static", "qemu-user-static"), "-cpu", processor)
    results = driver.with_name("results")
    run(*emulator, driver, calls.file, results, env={"OMP_NUM_THREADS": str(num_threads)})
    return results.read_bytes()


def check(calls: Calls, results: bytes) -> None:
    for image in calls.images:
        pairs, results = image.split(results)
        assert pairs
        for theirs, ours in pairs:
            largest = np.abs(ours[np.isfinite(ours)]).max()
            allowed = image.tolerance * largest
            assert np.allclose(theirs, ours, rtol=0, atol=allowed, equal_nan=True), image.name
    assert not results


@pytest.mark.parametrize("level", ["dotprod", "neon"])
def test_arm_computes_what_x86_does(require: Require, calls: Calls, tmp_path: Path, level: str) -> None:
    driver = build_with_gcc(require, level, tmp_path)
    for num_threads in (1, 2):
        check(calls, run_driver(require, driver, level, calls, num_threads))


@pytest.mark.parametrize("level", ["dotprod", "neon", "avx2", "avx512vnni"])
def test_clang_computes_what_gcc_does(require: Require, calls: Calls, tmp_path: Path, level: str) -> None:
    """Apple's compiler is Clang."""
    driver = build_with_clang(require, level, tmp_path)
    if level in PROCESSORS or level in HERE:
        check(calls, run_driver(require, driver, level, calls, 1))
