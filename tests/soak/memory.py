"""What a process's memory consists of, written down by the process itself once a second.

SQLite's part is its page caches; malloc's is what was asked for, and what it holds free between that. The
rest of the resident memory is code and other mapped files.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import gc
import json
import os
import threading
import time
from pathlib import Path

_EVERY_S = 1.0


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def watch(file: Path) -> None:
    """From now on, as long as the process lives."""
    threading.Thread(target=_keep_writing, args=(file,), daemon=True).start()


def _keep_writing(file: Path) -> None:
    while True:
        half = file.with_suffix(".half")
        half.write_text(json.dumps(parts()))
        half.replace(file)
        time.sleep(_EVERY_S)


def parts() -> dict[str, float]:
    """In MB, except for ``objects``; what this system does not tell is left out."""
    found = _resident() | _sqlite() | _malloc()
    return {name: round(size / 1e6, 1) for name, size in found.items()} | {"objects": len(gc.get_objects())}


def _resident() -> dict[str, float]:
    found = {}
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssFile"):
            found[{"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "files"}[name]] = 1024.0 * int(
                value.split()[0]
            )
    return found


def _sqlite() -> dict[str, float]:
    try:
        used = ctypes.CDLL(getattr(_sqlite3, "__file__", None)).sqlite3_memory_used
    except (OSError, AttributeError):
        return {}
    used.restype = ctypes.c_int64
    return {"sqlite": float(used())}


def _malloc() -> dict[str, float]:
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return {}
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return {"malloc_used": info.uordblks + info.hblkhd, "malloc_free": info.fordblks}
