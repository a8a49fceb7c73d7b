"""Environments by name. A new one is one file and one line in ``ENVIRONMENTS``.

A class outside this package works too, by its dotted path (``my_pkg.my_module:MyEnvironment``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.plugins import create
from openclaw_rl.types import Environment

__all__ = ["ENVIRONMENTS", "POOLS", "EnvironmentParts", "create_environment", "environment_maker"]


@dataclass(frozen=True, slots=True)
class EnvironmentParts:
    """Settings for creating an environment; the constructor of a custom one may take them too."""

    tasks: str = ""
    """A file or folder of tasks; empty: the environment's built-in tasks."""
    max_steps: int = 0
    """Steps per episode; 0: the environment's default."""
    pictures: bool = False
    """Keep pictures for people who review episodes, if the environment has any."""


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
    return Gui(parts.tasks, parts.max_steps or 30, seen == "screenshot", parts.pictures)


def _verifiers(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.verifiers import Verifiers

    return Verifiers(parts.tasks, parts.max_steps or 30)


def _openenv(parts: EnvironmentParts) -> Environment:
    from openclaw_rl.envs.openenv import OpenEnv

    return OpenEnv(parts.tasks, parts.max_steps or 20)


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "toolcall": _toolcall,
    "terminal": _terminal,
    "swe": _swe,
    "gui": _gui,
    "verifiers": _verifiers,
    "openenv": _openenv,
}


def create_environment(name: str, parts: EnvironmentParts | None = None) -> Environment:
    """By name, or ``pkg.module:Class``; the ValueError for an unknown name lists the known ones."""
    made: Environment = create("environment", name, ENVIRONMENTS, parts or EnvironmentParts())
    return made


Maker = Callable[[], Environment]


def _here(address: str, name: str, parts: EnvironmentParts) -> Maker:
    return lambda: create_environment(name, parts)


def _on_ray(address: str, name: str, parts: EnvironmentParts) -> Maker:
    from openclaw_rl.envs.ray_actors import RayEnvironment, connect

    connect(address)
    return lambda: RayEnvironment(name, parts)


#: Where a pool's environments run.
POOLS: dict[str, Callable[[str, str, EnvironmentParts], Maker]] = {"local": _here, "ray": _on_ray}


def environment_maker(name: str, parts: EnvironmentParts, pool: str = "local") -> Maker:
    """The factory for a pool's environments; ``pool`` is a name in ``POOLS``, or a URL with it as scheme."""
    kind = pool.partition("://")[0]
    if kind not in POOLS:
        raise ValueError(f"there is no pool {pool!r}; known: {', '.join(POOLS)}, ray://HOST:10001")
    return POOLS[kind](pool, name, parts)
