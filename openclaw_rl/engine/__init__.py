"""Engines by name. A new engine is one file and one line in ``ENGINES``.

A class outside this package is named by its dotted path (``my_pkg.my_module:MyEngine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.fireworks_service import check_name
from openclaw_rl.models import pick_device
from openclaw_rl.plugins import create, find, imported
from openclaw_rl.settings import EngineConfig, extended
from openclaw_rl.types import GRAMMAR_DIALECT, Capabilities, Engine

__all__ = ["ENGINES", "LOCAL", "EngineParts", "capabilities_of", "check_settings", "create_engine"]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Arguments for building an engine."""

    model: Path
    """The model's folder: config, tokenizer, safetensors."""
    settings: EngineConfig


@dataclass(frozen=True)
class _Maker:
    """An engine of this package, imported when it is needed: torch takes seconds."""

    module: str
    engine: str
    options: str | type[EngineConfig]
    """The dataclass of its settings; a class if its module is too heavy to be asked."""
    check: Callable[[Any], None] = lambda options: None
    known: Capabilities | None = None
    """Where its module is too heavy to be asked."""

    @property
    def capabilities(self) -> Capabilities:
        """As far as they are known before it is made."""
        return self.known or cast(Capabilities, self._of_module(self.engine).capabilities)

    @property
    def options_type(self) -> type[EngineConfig]:
        return self._of_module(self.options) if isinstance(self.options, str) else self.options

    def check_settings(self, settings: EngineConfig) -> None:
        self.check(self._own(settings))

    def __call__(self, parts: EngineParts) -> Engine:
        return cast(Engine, self._of_module(self.engine)(parts.model, self._own(parts.settings)))

    def _own(self, settings: EngineConfig) -> EngineConfig:
        return extended(self.options_type, settings, settings.engine_options)

    def _of_module(self, name: str) -> Any:
        return imported(f"openclaw_rl.engine.{self.module}:{name}")


#: The embedded engine's: the learn process looks at them, and does without its module.
LOCAL = Capabilities(full_weights=True, hidden_states=True, grammar=GRAMMAR_DIALECT, warm_switching=True)


def _check_local(options: LocalEngineOptions) -> None:
    from openclaw_rl.engine.kernels import check_kernel_name

    pick_device(options.device)
    check_kernel_name(options.kernel)


def _check_fireworks(options: Any) -> None:
    check_name({"base_model": options.base_model})


#: One that has ``check_settings`` refuses with it what cannot be done, before a model is looked for.
ENGINES: dict[str, Callable[[EngineParts], Engine]] = {
    "local": _Maker("local", "LocalEngine", LocalEngineOptions, _check_local, LOCAL),
    "vllm": _Maker("vllm", "VllmEngine", "VllmOptions"),
    "tinker": _Maker("tinker", "TinkerEngine", "TinkerEngineOptions"),
    "fireworks": _Maker("fireworks", "FireworksEngine", "FireworksEngineOptions", _check_fireworks),
}


def capabilities_of(name: str) -> Capabilities | None:
    """None where they are not known before the engine is made."""
    known = getattr(find("engine", name, ENGINES), "capabilities", None)
    return known if isinstance(known, Capabilities) else None


def check_settings(settings: EngineConfig) -> None:
    """ValueError for an engine that is not there, or for settings that it knows it cannot use."""
    maker = find("engine", settings.engine, ENGINES)
    getattr(maker, "check_settings", lambda settings: None)(settings)


def create_engine(parts: EngineParts) -> Engine:
    engine: Engine = create("engine", parts.settings.engine, ENGINES, parts)
    return engine
