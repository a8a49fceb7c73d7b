"""The C kernels as shared libraries: taken from the wheel, or else compiled once per machine.

A platform wheel carries ``prebuilt/native-<level>.so`` for every level of its platform
(``scripts/build-wheels``). From a source checkout the level in use is compiled into the user's cache, which
takes some seconds. Libraries are not linked against OpenMP: they use torch's thread team, because a second
team on the same cores would slow both down.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from openclaw_rl.engine.levels import Level
from openclaw_rl.models import default_cache_dir

SOURCES = Path(__file__).with_name("csrc")
PREBUILT = Path(__file__).with_name("prebuilt")
_FLAGS = ("-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_BUILD_TIMEOUT_S = 300


class Unavailable(RuntimeError):
    """Native kernels cannot be used; the message says why."""


def find_compilers() -> list[str]:
    """Installed C compilers, preferred first: ``$CC``, gcc, cc. The code needs GCC's vector extensions."""
    named = (os.environ.get("CC"), "gcc", "cc")
    return list(dict.fromkeys(path for name in named if name and (path := shutil.which(name))))


def open_library(level: Level) -> ctypes.CDLL:
    """Load the level's library; raises ``Unavailable`` with the reason."""
    if platform.system() not in ("Linux", "Darwin"):
        raise Unavailable(f"there are no native kernels for {platform.system()}")
    try:
        _share_openmp()
        return _open_prebuilt(level) or _open_compiled(level)
    except OSError as problem:
        raise Unavailable(f"the native kernels could not be built or loaded ({problem})") from problem


def compile_level(compiler: str, level: Level, library: Path) -> None:
    """Compile the level's library. The file appears complete or not at all."""
    library.parent.mkdir(parents=True, exist_ok=True)
    is_apple = platform.system() == "Darwin"
    openmp = ("-Xclang", "-fopenmp") if is_apple else ("-fopenmp",)
    # OpenMP's symbols stay undefined: torch's library provides them when ours is loaded.
    link = ("-dynamiclib", "-undefined", "dynamic_lookup") if is_apple else ("-shared",)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        object_file, shared = Path(folder, "native.o"), Path(folder, "native.so")
        source = str(SOURCES / "native.c")
        run([compiler, *flags_of(compiler), *openmp, *level.flags, "-c", source, "-o", str(object_file)])
        run([compiler, *link, str(object_file), "-o", str(shared), "-lm"])
        shared.replace(library)


def flags_of(compiler: str) -> tuple[str, ...]:
    """Compiler flags other than the level's. Clang rejects flags that it does not know."""
    is_clang = "clang" in run([compiler, "--version"])
    return _FLAGS if is_clang else (*_FLAGS, "-fno-tree-reassoc")


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"{command[0]} did not finish ({type(problem).__name__})") from problem
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr.strip() or 'no message').splitlines()[0]}")
    return done.stdout


def _open_prebuilt(level: Level) -> ctypes.CDLL | None:
    """None if the file is missing or does not load, for example on an older libc: then we compile."""
    try:
        return ctypes.CDLL(str(PREBUILT / f"native-{level.name}.so"))
    except OSError:
        return None


def _open_compiled(level: Level) -> ctypes.CDLL:
    """Use the first compiler that works. A library that does not load is truncated and is rebuilt."""
    problems: list[str] = []
    for compiler in find_compilers():
        try:
            library = compiled(compiler, level)
            try:
                return ctypes.CDLL(str(library))
            except OSError:
                library.unlink(missing_ok=True)
                return ctypes.CDLL(str(compiled(compiler, level)))
        except (Unavailable, OSError) as problem:  # OSError: built for another OpenMP than torch's
            problems.append(str(problem))
    raise Unavailable(
        "; ".join(problems) or "no C compiler (gcc or clang) was found; with one, the engine is faster"
    )


def compiled(compiler: str, level: Level) -> Path:
    """The level's library in the user's cache, compiled if missing."""
    library = default_cache_dir() / f"native-{level.name}-{_digest(compiler, level)}.so"
    if not library.exists():
        compile_level(compiler, level, library)
    return library


def _digest(compiler: str, level: Level) -> str:
    import torch

    sources = [path.read_text() for path in sorted(SOURCES.iterdir())]
    flags = (*flags_of(compiler), *level.flags)
    parts = [*sources, compiler, run([compiler, "--version"]), *flags, torch.__version__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _share_openmp() -> None:
    """Make the symbols of torch's OpenMP library visible to ours."""
    import torch  # imported late: building wheels needs no torch

    if platform.system() == "Darwin":
        files = sorted(map(str, Path(torch.__file__).parent.glob("lib/libomp*.dylib")))
    else:
        files = openmp_files(Path("/proc/self/maps").read_text())
    # Other packages ship their own copies; torch's is next to torch.
    of_torch = [path for path in files if Path(path).parent.parent.name == "torch" or "torch.libs" in path]
    if len(of_torch or files) != 1:
        raise Unavailable(f"torch's OpenMP library was not found among {files or 'those loaded'}")
    ctypes.CDLL((of_torch or files)[0], mode=ctypes.RTLD_GLOBAL)


def openmp_files(maps: str) -> list[str]:
    """Loaded libgomp files. The path is everything after five columns: it may contain spaces."""
    return sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libgomp" in line})
