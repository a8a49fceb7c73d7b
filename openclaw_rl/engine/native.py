"""``native.c`` for Python: built where a C compiler is found, called through ctypes.

Built once per machine into the user's cache, in a second or two. It shares torch's own OpenMP threads: a
second team on the same cores would make both wait. Without a compiler torch's operators are used, and the
reason is said at the start.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.lora import LowRank
from openclaw_rl.models import default_cache_dir
from openclaw_rl.toolchain import find_compilers

_SOURCE = Path(__file__).with_suffix(".c")
_WIDE = ["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []
_FLAGS = ["-O3", *_WIDE, "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC"]
#: As in native.c: numbers in a vector, which heads consist of, and tokens in a block.
VECTOR = 16
_BLOCK = 256
_BUILD_TIMEOUT_S = 60


class Unavailable(RuntimeError):
    """Why there are no native operators here."""


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "heads", "key_heads", "size")),
        *((name, ctypes.c_void_p) for name in ("cos_RD", "sin_RD", "q_norm_D", "k_norm_D")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *(
            (name, ctypes.c_void_p)
            for name in ("cache_R", "capacity_R", "length_R", "first_item_R", "partial", "q_RND")
        ),
    ]


@dataclass(frozen=True, slots=True)
class Native:
    """The built library. Tensors are contiguous; results are bf16 and, where asked for, fp32 too."""

    library: Any

    def add_norm(
        self,
        hidden_RI: torch.Tensor,
        delta_RI: torch.Tensor | None,
        weight_I: torch.Tensor,
        eps: float,
        out: Out,
    ) -> None:
        rows, size = hidden_RI.shape
        self.library.add_norm(
            hidden_RI.data_ptr(), *_read(delta_RI), weight_I.data_ptr(), eps, *out.pointers, rows, size
        )

    def gate(self, gate_up_RO: torch.Tensor, out: Out) -> None:
        rows, width = gate_up_RO.shape
        self.library.gate(*_read(gate_up_RO), *out.pointers, rows, width // 2)

    def low_rank(self, y_RO: torch.Tensor, x_RI: torch.Tensor, low_rank: LowRank) -> None:
        """``y += (x @ a.T) @ b``."""
        rows, size = x_RI.shape
        self.library.low_rank(
            y_RO.data_ptr(),
            x_RI.data_ptr(),
            *low_rank.pointers,
            len(low_rank.parts_P4),
            rows,
            size,
            *low_rank.b_KO.shape,
        )

    def refine(
        self, logits_RV: torch.Tensor, x_RI: torch.Tensor, weight_VI: torch.Tensor, wanted: int
    ) -> None:
        rows, vocab = logits_RV.shape
        self.library.refine(
            logits_RV.data_ptr(), x_RI.data_ptr(), weight_VI.data_ptr(), rows, vocab, x_RI.shape[1], wanted
        )

    @property
    def has_products(self) -> bool:
        """Whether this processor has the instructions the products are written with."""
        return bool(self.library.has_products())

    def int4_product(self, x_RI: torch.Tensor, tiles: torch.Tensor, width: int) -> torch.Tensor:
        """fp32 out of bf16 and weights packed by ``pack_int4``."""
        return self._product(self.library.int4_product, x_RI, tiles, width)

    def int8_product(self, x_RI: torch.Tensor, tiles: torch.Tensor, width: int) -> torch.Tensor:
        """fp32 out of fp32 and weights packed by ``pack_int8``."""
        return self._product(self.library.int8_product, x_RI, tiles, width)

    def _product(self, function: Any, x_RI: torch.Tensor, tiles: torch.Tensor, width: int) -> torch.Tensor:
        rows, size = x_RI.shape
        y_RO = torch.empty(rows, width)
        function(x_RI.data_ptr(), tiles.data_ptr(), y_RO.data_ptr(), rows, size, width)
        return y_RO

    def attend(self, step: DecodeStep, qkv_RO: torch.Tensor, layer: int, out: Out) -> None:
        self.library.attend(step.pointer, *_read(qkv_RO), layer, *out.pointers)


class Out:
    """Where a function puts its result: one buffer for the product that follows, one for adapters."""

    def __init__(self, rows: int, width: int, *, bf16: bool, fp32: bool) -> None:
        self.bf16 = torch.empty(rows, width, dtype=torch.bfloat16) if bf16 else None
        self.fp32 = torch.empty(rows, width) if fp32 or not bf16 else None
        self.pointers = (_pointer(self.bf16), _pointer(self.fp32))

    @property
    def for_product(self) -> torch.Tensor:
        tensor = self.fp32 if self.bf16 is None else self.bf16
        assert tensor is not None
        return tensor


class DecodeStep:
    """One new token of each sequence: where it stands and where its keys and values lie."""

    def __init__(
        self,
        caches: Sequence[SequenceCache],
        cos_RD: torch.Tensor,
        sin_RD: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> None:
        rows, size = cos_RD.shape
        for sequence in caches:
            sequence.reserve(sequence.length + 1)
        blocks = [sequence.length // _BLOCK + 1 for sequence in caches]
        first_items = [sum(blocks[:row]) for row in range(rows + 1)]
        longs = ctypes.c_long * rows
        self._kept = (
            cos_RD,
            sin_RD,
            (ctypes.c_void_p * rows)(*(sequence.pointer for sequence in caches)),
            longs(*(sequence.capacity for sequence in caches)),
            longs(*(sequence.length for sequence in caches)),
            (ctypes.c_long * (rows + 1))(*first_items),
            torch.empty(first_items[-1] * num_heads * (size + 2)),
            torch.empty(rows * num_heads * size),
        )
        cos, sin, pointers, capacities, lengths, items, partial, q_RND = self._kept
        self.struct = _Step(
            rows, num_heads, num_kv_heads, size, cos.data_ptr(), sin.data_ptr(), None, None, eps, size**-0.5,
            ctypes.addressof(pointers), ctypes.addressof(capacities), ctypes.addressof(lengths),
            ctypes.addressof(items), partial.data_ptr(), q_RND.data_ptr(),
        )  # fmt: skip
        self.pointer = ctypes.addressof(self.struct)

    def use_norms(self, q_norm_D: torch.Tensor, k_norm_D: torch.Tensor) -> None:
        self.struct.q_norm_D, self.struct.k_norm_D = q_norm_D.data_ptr(), k_norm_D.data_ptr()


def pack_int4(codes_OI: torch.Tensor, scale_OG: torch.Tensor, low_OG: torch.Tensor) -> torch.Tensor:
    """Tiles of 16 outputs and one group of inputs as ``native.c`` reads them; all sizes fit exactly."""
    out, size = codes_OI.shape
    # Output 16 t + l and input 32 g + 8 v + 2 s + p are nibble s of lane (l, p) in vector v of tile (t, g).
    nibbles = codes_OI.to(torch.int32).view(out // 16, 16, size // 32, 4, 4, 2).permute(0, 2, 3, 1, 5, 4)
    lanes = (nibbles << torch.tensor([0, 4, 8, 12])).sum(-1).to(torch.uint16).flatten(2)
    halves = [part.half().view(out // 16, 16, size // 32).transpose(1, 2) for part in (scale_OG, low_OG)]
    return torch.cat(
        [lanes.view(torch.int16), *(half.view(torch.int16) for half in halves)], dim=-1
    ).contiguous()


def pack_int8(codes_OI: torch.Tensor, scale_OG: torch.Tensor) -> torch.Tensor:
    """Tiles of 16 outputs and one group of inputs; codes are -127 to 127."""
    out, size = codes_OI.shape
    codes = (codes_OI.to(torch.int16) + 128).to(torch.uint8)
    quads = codes.view(out // 16, 16, size // 32, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)
    halves = scale_OG.half().view(out // 16, 16, size // 32).transpose(1, 2).contiguous()
    return torch.cat([quads, halves.view(torch.uint8)], dim=-1).contiguous()


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _read(tensor: torch.Tensor | None) -> tuple[int | None, int]:
    if tensor is None:
        return None, 0
    return tensor.data_ptr(), tensor.dtype is torch.bfloat16


# --- building ------------------------------------------------------------------------------------


def load_native() -> Native:
    """Build if need be and load; ``Unavailable`` says what is missing."""
    found = _load_once()
    if isinstance(found, Unavailable):
        raise found
    return found


@cache
def _load_once() -> Native | Unavailable:
    """What fails is not tried again in this process."""
    try:
        return _load()
    except Unavailable as problem:
        return problem


def _load() -> Native:
    if platform.system() != "Linux":
        raise Unavailable(f"native operators are built on Linux only, this is {platform.system()}")
    try:
        _share_openmp()
        library = _open_built()
    except OSError as problem:
        raise Unavailable(f"the operators could not be built or loaded ({problem})") from problem
    pointer, long, single, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
    out = [pointer, pointer]
    library.add_norm.argtypes = [pointer, pointer, flag, pointer, single, *out, long, long]
    library.gate.argtypes = [pointer, flag, *out, long, long]
    library.low_rank.argtypes = [pointer] * 5 + [long] * 5
    library.attend.argtypes = [pointer, pointer, flag, long, *out]
    library.refine.argtypes = [pointer] * 3 + [long] * 4
    if library.has_products():
        library.int4_product.argtypes = library.int8_product.argtypes = [pointer] * 3 + [long] * 3
    return Native(library)


def _share_openmp() -> None:
    """Make torch's OpenMP library visible to ours, which is linked against none."""
    loaded = _openmp_files(Path("/proc/self/maps").read_text())
    # Other packages bring copies of their own; torch's lies beside it.
    of_torch = [path for path in loaded if Path(path).parent.parent.name == "torch" or "torch.libs" in path]
    if len(of_torch or loaded) != 1:
        raise Unavailable(f"torch's OpenMP library was not found among {loaded or 'those loaded'}")
    ctypes.CDLL((of_torch or loaded)[0], mode=ctypes.RTLD_GLOBAL)


def _openmp_files(maps: str) -> list[str]:
    """The sixth column to its end: a path may have spaces."""
    return sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libgomp" in line})


def _open_built() -> ctypes.CDLL:
    """With the first compiler that can; a file that does not load was cut off, and is built again."""
    problems: list[str] = []
    for compiler in find_compilers():
        try:
            library = _built(compiler)
            try:
                return ctypes.CDLL(str(library))
            except OSError:
                library.unlink(missing_ok=True)
                return ctypes.CDLL(str(_built(compiler)))
        except Unavailable as problem:
            problems.append(str(problem))
    raise Unavailable("; ".join(problems) or "no C compiler (gcc) was found; with one, decoding is faster")


def _built(compiler: str) -> Path:
    library = default_cache_dir() / f"native-{_digest(_SOURCE.read_text(), compiler)}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        object_file, shared = Path(folder, "native.o"), Path(folder, "native.so")
        _run([compiler, *_FLAGS, "-c", str(_SOURCE), "-o", str(object_file)])
        # Linked without -fopenmp, which would bring a second OpenMP library.
        _run([compiler, "-shared", str(object_file), "-o", str(shared), "-lm"])
        shared.replace(library)
    return library


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"{command[0]} did not finish ({type(problem).__name__})") from problem
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr.strip() or 'no message').splitlines()[0]}")
    return done.stdout


def _digest(source: str, compiler: str) -> str:
    """A home shared by several machines must not hand one's instructions to another."""
    cpu = Path("/proc/cpuinfo").read_text()
    flags = next(
        (line for line in cpu.splitlines() if line.startswith(("flags", "Features"))), platform.machine()
    )
    version = _run([compiler, "--version"])
    key = "\n".join([source, compiler, version, *_FLAGS, flags, torch.__version__])
    return hashlib.sha256(key.encode()).hexdigest()[:16]
