"""Engines by name. A new engine is one file and one line in ``ENGINES``.

A class outside this package is named by its dotted path (``my_pkg.my_module:MyEngine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.plugins import create
from openclaw_rl.settings import EngineConfig, extended
from openclaw_rl.types import Engine

__all__ = ["ENGINES", "EngineParts", "create_engine"]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Arguments for building an engine."""

    model: Path
    """The model's folder: config, tokenizer, safetensors."""
    settings: EngineConfig


def _local(parts: EngineParts) -> Engine:
    # Imported late: torch takes seconds, and the ledger commands do not need it.
    from openclaw_rl.engine.local import LocalEngine, LocalEngineOptions

    settings = parts.settings
    return LocalEngine(parts.model, extended(LocalEngineOptions, settings, settings.engine_options))


def _vllm(parts: EngineParts) -> Engine:
    from openclaw_rl.engine.vllm import VllmEngine, VllmOptions

    return VllmEngine(parts.model, extended(VllmOptions, parts.settings, parts.settings.engine_options))


def _tinker(parts: EngineParts) -> Engine:
    from openclaw_rl.engine.tinker import TinkerEngine, TinkerEngineOptions

    return TinkerEngine(
        parts.model, extended(TinkerEngineOptions, parts.settings, parts.settings.engine_options)
    )


ENGINES: dict[str, Callable[[EngineParts], Engine]] = {"local": _local, "vllm": _vllm, "tinker": _tinker}


def create_engine(parts: EngineParts) -> Engine:
    engine: Engine = create("engine", parts.settings.engine, ENGINES, parts)
    return engine
