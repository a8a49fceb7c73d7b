"""Calibrations fitted to a model, and recognising that model by its log-probs.

A calibration is valid only for the model it was fitted to. Names and widths do not identify a model, so each
file holds the log-probs that its model gives to a fixed text; it is used only for a model that gives the same
(kernels differ a little). Besides the package's files, there may be your own, one folder per model in
``judge`` in the cache folder; ``evals.fit_judge`` writes them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from openclaw_rl.judge.calibration import Calibration
from openclaw_rl.models import default_cache_dir
from openclaw_rl.types import Engine, ScoreRequest

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).parent
KINDS = ("user", "tool")
SIGNATURE_TEXT = (
    "The user asked how to boil an egg. The assistant said: put it into boiling water for six minutes. "
    "Then the user wrote: thanks, that was exactly what I needed! The assistant answered: You're welcome."
)
#: Mean difference of log-probs. Different kernels of one model stay far below it, other models far above.
_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Fitted:
    model: str
    layer: int
    """The layer (from 0) whose hidden states ``full`` was fitted to."""
    signature: tuple[float, ...]
    plain: dict[str, list[Calibration]]
    """Kind of next state -> one calibration per vote, without hidden states."""
    full: dict[str, list[Calibration]]


@cache
def read_fitted(folder: Path = PACKAGE) -> Fitted:
    plain, full = (
        json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("calibration", "probe")
    )
    return Fitted(
        full["model"], full["layer"], tuple(full["signature"]), _calibrations(plain), _calibrations(full)
    )


def _calibrations(data: dict[str, Any]) -> dict[str, list[Calibration]]:
    return {kind: [Calibration.from_json(one) for one in data[kind]] for kind in KINDS}


def own_folder(model: str) -> Path:
    """The folder for files fitted to your own model."""
    name = "".join(character if character.isalnum() or character in "-._" else "_" for character in model)
    return default_cache_dir() / "judge" / name.strip("._")


async def signature(engine: Engine, encode: Callable[[str], list[int]]) -> tuple[float, ...]:
    ids = encode(SIGNATURE_TEXT)
    scores = await engine.score(ScoreRequest(ids, 1))
    return tuple(round(value, 3) for value in scores.logprobs)


def is_same_model(one: Sequence[float], other: Sequence[float]) -> bool:
    if len(one) != len(other) or not one:
        return False
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one) <= _TOLERANCE


async def recognise(engine: Engine, encode: Callable[[str], list[int]]) -> Fitted | None:
    """The calibration fitted to the engine's base model, or None."""
    found = await signature(engine, encode)
    own = sorted(path.parent for path in (default_cache_dir() / "judge").glob("*/probe.json"))
    known = (read_fitted(PACKAGE), *filter(None, map(_read_own, own)))
    return next((one for one in known if is_same_model(one.signature, found)), None)


def _read_own(folder: Path) -> Fitted | None:
    """None if it is damaged or half written, which must not keep other models from being judged with."""
    try:
        return read_fitted(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.warning("the calibration in %s cannot be read (%s); fit it again", folder, type(error).__name__)
        return None
