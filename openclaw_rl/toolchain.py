"""What this machine can build with; the embedded engine builds its fast path at the first start."""

from __future__ import annotations

import os
import shutil


def find_compiler() -> str | None:
    """A C compiler: ``$CC``, else cc or gcc."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
