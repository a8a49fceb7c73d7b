"""Environments by name. A new one is one file and one line in ``ENVIRONMENTS``.

A class outside this package works too, by its dotted path (``my_pkg.my_module:MyEnvironment``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.plugins import create
from openclaw_rl.types import Environment

__all__ = ["ENVIRONMENTS", "EnvironmentParts", "create_environment"]


@dataclass(frozen=True, slots=True)
class EnvironmentParts:
    """What an environment is made with; whoever makes one of their own may ask for it."""

    tasks: str = ""
    """A file or folder of tasks; empty: those that come with it."""
    max_steps: int = 0
    """0: as many as it finds right."""


def _toolcall(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.toolcall import ToolCalls

    return ToolCalls(parts.tasks, parts.max_steps or 8)


def _terminal(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.terminal import Terminal

    return Terminal(parts.tasks, parts.max_steps or 10)


def _swe(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.swe import SoftwareEngineering

    return SoftwareEngineering(parts.tasks or os.environ.get("SWE_BENCH_PATH", ""), parts.max_steps or 20)


def _gui(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.gui import Gui

    seen = os.environ.get("SCREENSHOT_BACKEND", "tree")
    if seen not in ("tree", "screenshot"):
        raise ValueError(f"SCREENSHOT_BACKEND is tree (text) or screenshot (text and picture), not {seen!r}")
    return Gui(parts.tasks, parts.max_steps or 30, screenshots=seen == "screenshot")


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "toolcall": _toolcall,
    "terminal": _terminal,
    "swe": _swe,
    "gui": _gui,
}


def create_environment(name: str, parts: EnvironmentParts | None = None) -> Environment:
    """By name, or ``pkg.module:Class``; ValueError that lists the names there are."""
    made: Environment = create("environment", name, ENVIRONMENTS, parts or EnvironmentParts())
    return made
