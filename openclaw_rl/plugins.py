"""Finds implementations by a name in a table, or by the dotted path of a custom one."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from openclaw_rl.errors import did_you_mean
from openclaw_rl.settings import own_settings


def imported(path: str) -> Any:
    """What ``pkg.module:name`` names, imported now: heavy modules are left alone until they are used."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def load_object(what: str, path: str) -> Any:
    """Import a custom ``pkg.module:name``, installed or in the current folder; ValueError with the remedy."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return imported(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot load the {what} {path!r} ({error}); check 'pkg.module:Name'") from error


def find(what: str, name: str, table: Mapping[str, Callable[..., Any] | str]) -> Any:
    """The factory of that name, or a custom one; ValueError with the known names.

    A table's entry is the factory itself, or its ``pkg.module:name``.
    """
    if name in table:
        entry = table[name]
        return imported(entry) if isinstance(entry, str) else entry
    if ":" in name:
        return load_object(what, name)
    raise ValueError(
        f"unknown {what} {name!r}; known: {', '.join(table)}, or pkg.module:Class of your own"
        f"{did_you_mean(name, table)}"
    )


def create(
    what: str,
    name: str,
    table: Mapping[str, Callable[..., Any] | str],
    parts: Any,
    own: Mapping[str, Any] | None = None,
) -> Any:
    """Call the named factory with the parts, or without arguments if it takes none.

    ``own`` holds the settings that only this implementation has. If the implementation is a dataclass, they
    are its fields; any other custom class finds them in the parts.
    """
    make = find(what, name, table)
    if own is not None and is_dataclass(make) and isinstance(make, type):
        return own_settings(make, own)
    if own and name in table:
        raise ValueError(f"the {what} {name} has no settings of its own: {', '.join(own)}")
    takes_parts = bool(inspect.signature(make).parameters)
    return make(*([parts] if takes_parts else []))
