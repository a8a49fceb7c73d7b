"""Environments by name. A new one is one file and one line in ``ENVIRONMENTS``.

A class outside this package works too, by its dotted path (``my_pkg.my_module:MyEnvironment``).
"""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.plugins import create
from openclaw_rl.types import Environment

__all__ = ["ENVIRONMENTS", "create_environment"]

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {}


def create_environment(name: str) -> Environment:
    """By name, or ``pkg.module:Class``; ValueError that lists the names there are."""
    environment: Environment = create("environment", name, ENVIRONMENTS, None)
    return environment
