"""Engines by name. A new one is one file and one line in ``ENGINES``.

A class outside this package works too, by its dotted path (``my_pkg.my_module:MyEngine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl.plugins import create
from openclaw_rl.types import Engine

if TYPE_CHECKING:
    from openclaw_rl.config import EngineConfig

__all__ = ["ENGINES", "EngineParts", "create_engine"]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine may be built from."""

    model: Path
    """The model's folder: config, tokenizer, safetensors."""
    settings: EngineConfig


def _local(parts: EngineParts) -> Engine:
    # torch takes seconds to import: the ledger's commands do without.
    from openclaw_rl.engine.local import LocalEngine, LocalEngineOptions

    names = {field.name for field in fields(LocalEngineOptions)} & set(type(parts.settings).model_fields)
    options = LocalEngineOptions(**{name: getattr(parts.settings, name) for name in names})
    return LocalEngine(parts.model, options)


ENGINES: dict[str, Callable[[EngineParts], Engine]] = {"local": _local}


def create_engine(parts: EngineParts) -> Engine:
    engine: Engine = create("engine", parts.settings.engine, ENGINES, parts)
    return engine
