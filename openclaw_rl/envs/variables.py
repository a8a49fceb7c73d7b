"""Environment variables with names common in other systems; a flag overrides them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def read_variables(
    options: argparse.Namespace, environment: Mapping[str, str], parallel: int
) -> tuple[str, int, int]:
    """The environment, steps per episode (0: its default), and parallel episodes (default: ``parallel``);
    ValueError for invalid values."""
    env = options.env or environment.get("ENV_TYPE", "")
    if not env:
        raise ValueError("which environment? --env toolcall, terminal, swe, gui, or pkg.module:Class")
    steps = options.max_steps or _number(environment, "MAX_STEPS", 0)
    return env, steps, max(1, options.parallel or _number(environment, "PARALLEL_ENVS", parallel))


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name) or str(otherwise)
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it must be a whole number")
    return int(text)
