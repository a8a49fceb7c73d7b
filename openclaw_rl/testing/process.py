"""The installed command, for tests that run it."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def command() -> str:
    """The path of ``openclaw-rl`` in the running Python's environment."""
    return str(Path(sysconfig.get_path("scripts"), "openclaw-rl"))
