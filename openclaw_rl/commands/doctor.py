"""Checks this machine, and names the command that fixes each problem.

Guarantees: changes nothing, downloads nothing, and never prints a secret; a check that raises is reported
as failed and does not stop the others. The only connections are to our own port and to the configured
database.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models import cached_model, default_cache_dir, pick_device

_GIB = 1 << 30
_MIN_TORCH = (2, 11)
_MIN_MEMORY_GIB = 3.0
_MIN_DISK_GIB = 1.0
_CPU_FLAGS = {"avx2": "avx2", "avx512f": "avx512", "avx512_bf16": "bf16", "amx_tile": "amx"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``fix`` is empty when there is nothing to do; only a required check can fail a run."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def run_doctor(config: Config, cache_dir: Path | None = None) -> list[Finding]:
    """All checks, in the order in which a user would fix problems."""
    cache, model = cache_dir or default_cache_dir(), config.engine.model
    database_url = config.ledger.ledger_url or ""
    probes: list[tuple[str, Callable[[], Finding]]] = [
        ("python", check_python),
        ("torch", check_torch),
        ("cpu", check_cpu),
        ("compiler", check_kernels),
        ("gpu", check_gpu),
        ("memory", check_memory),
        ("disk: data", lambda: check_disk("disk: data", config.home)),
        ("disk: cache", lambda: check_disk("disk: cache", cache)),
        ("model", lambda: check_model(model, cache)),
        ("model: fits", lambda: check_fit(model, cache)),
        ("port", lambda: check_port(config.serve.host, config.serve.port)),
        ("key file", lambda: check_key_file(config.people / "keys.json")),
        ("node", check_node),
    ]
    if database_url.startswith("postgres"):
        probes.append(("postgres", lambda: check_postgres(database_url)))
    return [_run(name, probe) for name, probe in probes]


def print_doctor(checks: list[Finding]) -> int:
    """Print one line per check; returns the exit code: 1 if a required check failed."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        mark = "ok  " if check.ok else "FAIL" if check.required else "note"
        print(f"{mark}  {check.name:<{width}}  {check.detail}")
        if check.fix:
            print(f"      {'':<{width}}  fix: {check.fix}")
    num_failed = sum(1 for check in checks if check.required and not check.ok)
    print(f"\n{num_failed} problem(s) to fix" if num_failed else "\neverything needed is here")
    return 1 if num_failed else 0


def _run(name: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:
        return Finding(name, False, f"could not check: {type(error).__name__}: {error}")


# --- the machine -----------------------------------------------------------------------------


def check_python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}"
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, detail, "" if ok else "install Python 3.11 or newer, then: make clean setup")


def check_torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", False, f"cannot be imported: {error}", "make setup")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    ok = version >= _MIN_TORCH
    detail = f"{torch.__version__}, {torch.get_num_threads()} threads"
    return Finding("torch", ok, detail, "" if ok else "make clean setup (torch 2.11 or newer is needed)")


def check_cpu() -> Finding:
    """Never fails: every CPU works; the flags only indicate speed."""
    flags = _cpu_flags(Path("/proc/cpuinfo"))
    known = ", ".join(label for flag, label in _CPU_FLAGS.items() if flag in flags)
    return Finding(
        "cpu", True, f"{platform.machine()}, {os.cpu_count()} cores, {known or 'no vector flags seen'}"
    )


def check_kernels() -> Finding:
    """Optional: without them, torch's slower operators are used."""
    try:
        from openclaw_rl.engine.build import Unavailable
        from openclaw_rl.engine.native import load_native
    except (ImportError, OSError):
        return Finding("kernels", True, "not tried: torch cannot be imported", required=False)
    try:
        level = load_native().level
    except Unavailable as problem:
        fix = "install a compiler (apt-get install gcc libc6-dev), or a wheel that brings the kernels"
        return Finding(
            "kernels", False, f"{problem}; the engine uses torch's, which are slower", fix, required=False
        )
    return Finding(
        "kernels", True, f"{level.name}: {level.title}; decoding: {level.measured}", required=False
    )


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def check_gpu() -> Finding:
    """A GPU is optional; a card that torch cannot use is worth a note."""
    import torch

    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return Finding("gpu", True, f"{card.name}, {card.total_memory / _GIB:.0f} GiB", required=False)
    if torch.backends.mps.is_available():
        return Finding("gpu", True, "Apple GPU", required=False)
    if shutil.which("nvidia-smi"):
        detail = f"there is an NVIDIA driver, but torch {torch.__version__} cannot use the card"
        fix = ".venv/bin/pip install --force-reinstall torch from the index that matches your CUDA driver"
        return Finding("gpu", False, detail, fix, required=False)
    return Finding("gpu", True, "none; runs on the CPU", required=False)


def check_memory() -> Finding:
    available = _available_memory_gib()
    ok = available >= _MIN_MEMORY_GIB
    fix = "" if ok else f"close other programs: at least {_MIN_MEMORY_GIB:.0f} GiB should be free"
    return Finding("memory", ok, f"{available:.1f} GiB available", fix)


def _available_memory_gib() -> float:
    """Memory available without swapping; total memory if the kernel does not report it."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / _GIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB


def check_disk(name: str, folder: Path) -> Finding:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return Finding(name, False, f"{existing} is no folder", "name another one, or move that away")
    free = shutil.disk_usage(existing).free / _GIB
    if not os.access(existing, os.W_OK):
        return Finding(name, False, f"{existing} cannot be written to", f"sudo chown -R $USER {existing}")
    ok = free >= _MIN_DISK_GIB
    detail = f"{free:.1f} GiB free for {folder}"
    return Finding(name, ok, detail, "" if ok else f"free at least {_MIN_DISK_GIB:.0f} GiB there")


# --- the installation ------------------------------------------------------------------------


def check_model(model: str, cache_dir: Path) -> Finding:
    """A missing model is fine: the first start downloads it."""
    folder = cached_model(model, cache_dir)
    if folder is None:
        return Finding("model", True, f"{model} is not here yet; the first start gets it")
    return Finding("model", True, f"{model} in {folder}")


def check_fit(model: str, cache_dir: Path) -> Finding:
    """Computed for a local model only; nothing is downloaded."""
    from openclaw_rl.commands.fit import describe, measure_machine

    folder = cached_model(model, cache_dir)
    if folder is None:
        return Finding("model: fits", True, "not known before it is here", required=False)
    machine = measure_machine(pick_device("auto"))
    ok, size, fix, speed = describe(folder, machine)
    return Finding("model: fits", ok, f"{size}; {speed}", fix)


def check_port(host: str, port: int) -> Finding:
    """The port is free, or used by a server of ours that answers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if _is_ours(host, port):
                return Finding("port", True, f"openclaw-rl is running on {host}:{port}")
            return Finding("port", False, f"{host}:{port}: {error.strerror}", "PORT=30001 make serve")
    return Finding("port", True, f"{host}:{port} is free")


def _is_ours(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read(65536))
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("status") in {"ok", "degraded"}


def check_key_file(path: Path) -> Finding:
    """Only its owner may read the key file."""
    if not path.exists():
        return Finding("key file", True, "none yet; the first start makes one")
    mode = stat.S_IMODE(path.stat().st_mode)
    ok = mode & 0o077 == 0
    return Finding("key file", ok, f"{path} has mode {mode:03o}", "" if ok else f"chmod 600 {path}")


def check_node() -> Finding:
    node = shutil.which("node")
    if node is None:
        return Finding("node", True, "none; only some tests use it", required=False)
    done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return Finding("node", True, done.stdout.strip(), required=False)


def check_postgres(database_url: str) -> Finding:
    """Connect once; the URL is not shown, since it may contain a password."""
    try:
        import psycopg
    except ImportError:
        return Finding("postgres", False, "psycopg is not installed", "pip install 'openclaw-rl[postgres]'")
    # SQLAlchemy URLs name the driver, which libpq does not understand.
    url = "postgresql://" + database_url.partition("://")[2]
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            version = connection.info.server_version
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        return Finding("postgres", False, reason, "start PostgreSQL, or correct the database URL")
    return Finding("postgres", True, f"PostgreSQL {version // 10000} answers")
