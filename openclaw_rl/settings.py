"""Settings of engines, trainers and algorithms: plain dataclasses, with each default written once.

``config.py`` reads and checks them; code that uses them needs neither it nor pydantic. Settings of a single
implementation are fields of a dataclass that extends the section (see ``LocalEngineOptions``), or of an
algorithm that is a dataclass itself. They are set in a table with the implementation's name
(``[engine.NAME]``, ``[train.NAME]`` or ``[learn.NAME]``), or with ``--engine-options``, ``--trainer-options``
or ``--algo-options``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Lt

from openclaw_rl.errors import did_you_mean
from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.types.lora import ALL, lora_modules

T = TypeVar("T")
#: For pydantic, when a section is part of the config tree.
_STRICT: dict[str, Any] = {"extra": "forbid"}
_SWITCHES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list",
}  # fmt: skip
#: Bound in ``annotated_types`` -> its check, and its words in error messages.
_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


@dataclass(frozen=True)
class EngineConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    engine: str = "local"
    """local (in this process), vllm, tinker, fireworks, or your own pkg.module:Class."""
    model: str = DEFAULT_MODEL
    """A Hugging Face id, a local folder or a GGUF file."""
    renderer: str | None = None
    """Model family for chat templates and tool calls; detected by default."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    max_running: Annotated[int, Ge(1)] = 16
    """Maximum number of sequences generated at the same time."""
    engine_options: dict[str, Any] = field(default_factory=dict)
    """Settings of this engine only, as NAME=VALUE,NAME=VALUE; also [engine.NAME] in the file."""


@dataclass(frozen=True)
class TrainConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    trainer: str = "local"
    """local (in the learn process), tinker, fireworks, or your own pkg.module:Class."""
    finetune: Literal["lora", "full"] = "lora"
    """Train a low-rank adapter on the frozen base (lora), or all weights (full)."""
    lora_rank: Annotated[int, Ge(1)] = 16
    """The adapter's rank."""
    lora_targets: str = ALL
    """Layers with an adapter: all-linear, attention, mlp, or comma-separated names."""
    lora_alpha: Annotated[int, Ge(1)] = 32
    """The adapter is scaled by alpha / rank."""
    learning_rate: Annotated[float, Ge(0)] = 0.0
    """Learning rate; 0: by the model's size and --finetune (1e-3 for adapters of the default model)."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """AdamW's weight decay."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps of learning-rate warm-up."""
    grad_clip: Annotated[float, Gt(0)] = 1.0
    """Maximum norm of the gradient."""
    kl_coefficient: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL divergence from the base; LoRA only."""
    average_decay: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Decay of the moving average of the weights; 0: no average."""
    train_device: str = "auto"
    """cpu, cuda, or auto."""
    seed: int = 0
    """Random seed for the adapter's initial weights."""
    trainer_options: dict[str, Any] = field(default_factory=dict)
    """Settings of this trainer only, as NAME=VALUE,NAME=VALUE; also [train.NAME] in the file."""

    def __post_init__(self) -> None:
        lora_modules(self.lora_targets)


def extended(kind: type[T], section: Any, own: Mapping[str, Any], **parts: Any) -> T:
    """An implementation's settings: those of the section that it extends, and its own."""
    shared = {each.name: getattr(section, each.name) for each in fields(section)}
    return own_settings(kind, own, **shared, **parts)


def own_settings(kind: type[T], own: Mapping[str, Any], **given: Any) -> T:
    """Build a dataclass from values of a file or strings of a flag; ValueError with the known names."""
    known = {each.name: each for each in fields(kind) if each.name not in given}  # type: ignore[arg-type]
    values = {}
    for name, value in own.items():
        if name not in known:
            choices = ", ".join(known) or "none"
            raise ValueError(
                f"{kind.__name__} has no setting {name!r}; it has: {choices}{did_you_mean(name, known)}"
            )
        default = known[name].default
        values[name] = value if default is MISSING else _like(default, value, name)
    _check_bounds(kind, values)
    return kind(**given, **values)


def _check_bounds(kind: type, values: Mapping[str, Any]) -> None:
    """Check ``Annotated[int, Ge(1)]`` and ``Literal``; for sections of the config tree, pydantic does it."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # a custom class, with names imported only for type checkers
        return
    for name, value in values.items():
        choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else (value,)
        if value not in choices:
            known = [str(choice) for choice in choices]
            meant = did_you_mean(str(value), known)
            raise ValueError(f"setting {name} is {value!r}; it must be one of {', '.join(known)}{meant}")
        for bound in getattr(hints[name], "__metadata__", ()):
            _check_bound(name, value, bound)


def _check_bound(name: str, value: Any, bound: Any) -> None:
    for word, (holds, text) in _BOUNDS.items():
        limit = getattr(bound, word, None)
        if limit is not None and not holds(value, limit):
            raise ValueError(f"setting {name} is {value!r}; it must be {text} {limit}")


def _like(default: Any, value: Any, name: str) -> Any:
    """Convert the value to the default's type: strings of a flag become numbers and switches."""
    try:
        if isinstance(default, bool):
            return _SWITCHES[str(value).lower()]
        if isinstance(default, (int, float, str, tuple)):
            return type(default)(value)
    except (ValueError, TypeError, KeyError):
        wanted = _KINDS[type(default)]
        raise ValueError(f"setting {name} is {value!r}; it must be {wanted} (default: {default!r})") from None
    return value
