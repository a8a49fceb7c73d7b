"""Levels of vector instructions for the native kernels, and which of them this CPU has.

``native.c`` is compiled once per level; the best level that the CPU supports is used. All levels compute the
same products; wider ones are faster.
"""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    machine: str
    """As ``platform.machine`` reports it on Linux."""
    flags: tuple[str, ...]
    """Compiler flags (GCC or Clang)."""
    needs: frozenset[str]
    """CPU flags as /proc/cpuinfo names them."""
    title: str
    measured: str
    """Decoding speed against llama.cpp, with one stream and with eight; see docs/lab/benchmarks.md."""


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_NEEDS_AVX2 = frozenset({"avx2", "fma", "f16c"})
_NEEDS_AVX512 = _NEEDS_AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def _beside(one: float, eight: float) -> str:
    return f"{one} × as fast as llama.cpp at one stream, {eight} × at eight"


#: Best first, for each kind of machine.
LEVELS = {
    level.name: level
    for level in (
        Level("avx512vnni", "x86_64", (*_AVX512, "-mavx512vnni"), _NEEDS_AVX512 | {"avx512_vnni"},
              "AVX-512 with VNNI (Intel servers since 2019, AMD since Zen 4)", _beside(1.6, 3.1)),
        Level("avx512", "x86_64", _AVX512, _NEEDS_AVX512, "AVX-512 (Intel since Skylake-X)",
              _beside(1.3, 2.4)),
        Level("avxvnni", "x86_64", (*_AVX2, "-mavxvnni"), _NEEDS_AVX2 | {"avx_vnni"},
              "AVX2 with VNNI (Intel Core since the 12th generation)", _beside(1.7, 2.7)),
        Level("avx2", "x86_64", _AVX2, _NEEDS_AVX2, "AVX2 (Intel since Haswell, AMD since Zen)",
              _beside(1.3, 2.6)),
        Level("dotprod", "aarch64", ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"}),
              "NEON with dot products (Apple silicon, ARM servers)", "not measured"),
        Level("neon", "aarch64", ("-march=armv8-a",), frozenset({"asimd"}), "NEON", "not measured"),
    )
}  # fmt: skip


def levels_here() -> list[Level]:
    """Levels that this CPU supports, best first; none on CPUs older than AVX2."""
    has = _instructions()
    return [level for level in LEVELS.values() if level.machine == _machine() and level.needs <= has]


def _machine() -> str:
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())


@cache
def _instructions() -> frozenset[str]:
    if platform.system() == "Darwin":
        return _apple_instructions()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split() for line in lines if line.startswith(("flags", "Features"))), ()))


def _apple_instructions() -> frozenset[str]:
    if _machine() == "aarch64":
        return frozenset({"asimd", "asimddp"})  # all Apple silicon has both
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    done = subprocess.run(["sysctl", "-n", *names], capture_output=True, text=True, check=False)
    return frozenset(done.stdout.lower().split())
