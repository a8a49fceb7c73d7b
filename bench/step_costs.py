"""What a step of the engine costs, fitted to steps that were traced (``steps.py``).

A step takes ``fixed_s``, plus ``row_s`` for each stream and ``context_s`` for each token in the streams'
caches; if it reads a piece of a prompt, ``prompt_s`` instead of ``fixed_s``, plus ``read_s`` for each of its
tokens and ``attend_s`` for each pair of such a token and one before it. The first ``cached`` tokens of a
prompt are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Steps that took so many times the usual were disturbed; a handful of them would decide a fit.
_DISTURBED = 4.0
#: The beginning that all prompts share, and that is cached, has fewer tokens: a system prompt.
_LONGEST_START = 64


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    rows: int
    prompt: int
    context: int
    """Cached tokens of all streams."""
    begins: int
    """Cached tokens of the prompt."""
    s: float
    """Until the next one could begin: since the last one's end if that had streams that go on."""

    @property
    def pairs(self) -> float:
        return self.prompt * (self.begins + self.prompt / 2)


def read_steps(path: Path, began: float = 0.0, ended: float = float("inf")) -> list[Step]:
    """Of the trace, those that ended between two times."""
    found, last, had_rows = list[Step](), 0.0, False
    for line in path.read_text().splitlines():
        at, rows, prompt, context, begins, took, *_ = map(float, line.split())
        since = at - last if had_rows and rows else took
        # A pause in which the engine had nothing to do is no part of a step.
        seconds = since if since < took + 0.05 else took
        if began <= at <= ended:
            found.append(Step(at, int(rows), int(prompt), int(context), int(begins), seconds))
        last, had_rows = at, bool(rows or prompt)
    return found


def fit(steps: Sequence[Step]) -> dict[str, float]:
    """Relative errors count, so that short steps are met as well as long ones."""
    alone = _undisturbed([step for step in steps if not step.prompt])
    fixed_s, row_s, context_s = _solve([(1, step.rows, step.context) for step in alone], alone)
    prompts = [step for step in steps if step.prompt]
    first = [step.begins for step in prompts if step.begins < _LONGEST_START]
    streams_s = [row_s * step.rows + context_s * step.context for step in prompts]
    columns = [(1, step.prompt, step.pairs) for step in prompts]
    prompt_s, read_s, attend_s = _solve(columns, prompts, streams_s)
    return {
        "fixed_s": fixed_s,
        "row_s": row_s,
        "context_s": context_s,
        "prompt_s": prompt_s,
        "read_s": read_s,
        "attend_s": attend_s,
        "cached": float(np.median(first)),
    }


def _undisturbed(steps: list[Step]) -> list[Step]:
    usual = {
        rows: np.median([step.s for step in steps if step.rows == rows]) for rows in {s.rows for s in steps}
    }
    return [step for step in steps if step.s < _DISTURBED * usual[step.rows]]


def _solve(columns: Sequence[Any], steps: Sequence[Step], known: Sequence[float] = ()) -> list[float]:
    """Least squares with coefficients of at least 0: one that comes out below is left out."""
    a, b = np.array(columns, dtype=float), np.array([step.s for step in steps])
    weights = 1 / b
    if len(known):
        b = b - np.array(known)
    used = list(range(a.shape[1]))
    while True:
        found = np.linalg.lstsq(a[:, used] * weights[:, None], b * weights, rcond=None)[0]
        if (found >= 0).all() or len(used) == 1:
            break
        used.pop(int(found.argmin()))
    solution = [0.0] * a.shape[1]
    for column, value in zip(used, found, strict=True):
        solution[column] = max(0.0, float(value))
    return solution
