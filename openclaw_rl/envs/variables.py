"""Variables that people know from elsewhere, where a flag does not say otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def read_variables(
    options: argparse.Namespace, environment: Mapping[str, str], parallel: int
) -> tuple[str, int, int]:
    """Which environment, steps of an episode (0: as many as it finds right), and episodes at once;
    ValueError for what cannot be meant. ``parallel``: where nothing is said."""
    env = options.env or environment.get("ENV_TYPE", "")
    if not env:
        raise ValueError("which environment? --env toolcall, terminal, swe, gui, or pkg.module:Class")
    steps = options.max_steps or _number(environment, "MAX_STEPS", 0)
    return env, steps, max(1, options.parallel or _number(environment, "PARALLEL_ENVS", parallel))


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name) or str(otherwise)
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it wants a whole number")
    return int(text)
