"""What this machine can build with; the embedded engine builds its fast path at the first start."""

from __future__ import annotations

import os
import shutil


def find_compilers() -> list[str]:
    """C compilers, the likeliest to work first: ``$CC``, gcc, cc. The code needs GCC's vector extensions."""
    named = (os.environ.get("CC"), "gcc", "cc")
    return list(dict.fromkeys(path for name in named if name and (path := shutil.which(name))))
