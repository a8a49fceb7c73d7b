"""Shared by the algorithms: common options, arrays of a turn's tokens, and per-token weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge

from openclaw_rl.types import OFF_POLICY, Example, FloatArray, IntArray, Kind, Lesson, Source, TurnRecord


@dataclass(frozen=True, kw_only=True)
class ImportanceOptions:
    importance_cap: Annotated[float, Ge(1)] = 2.0
    """Upper bound of the importance weight that corrects for temperature and top-p."""


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(ImportanceOptions):
    """Options of algorithms that apply the verdict to every token."""

    rl_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the verdict itself."""


def sampled(turn: TurnRecord) -> tuple[IntArray, FloatArray]:
    """The reply's own tokens and their raw log-probs, as one column."""
    return (
        np.array([[token.id] for token in turn.tokens], np.int32),
        np.array([[token.logprob] for token in turn.tokens], np.float32),
    )


def student_top(turn: TurnRecord, k: int) -> tuple[IntArray, FloatArray]:
    """The k likeliest tokens of the version that answered, as recorded when it sampled."""
    held = min(len(token.top_ids) for token in turn.tokens)
    if held < k:
        raise ValueError(f"the turn holds {held} alternatives per token, the algorithm needs {k}")
    return (
        np.array([token.top_ids[:k] for token in turn.tokens], np.int32),
        np.array([token.top_logprobs[:k] for token in turn.tokens], np.float32),
    )


def free(turn: TurnRecord) -> FloatArray:
    """1 where the policy chose, 0 where a grammar left no choice."""
    return np.array([[0.0 if token.forced else 1.0] for token in turn.tokens], np.float32)


def importance(turn: TurnRecord, cap: float) -> FloatArray:
    """Importance weights: raw probability over sampling probability, at most ``cap``.

    Temperature and top-p sample likely tokens more often than the trained policy would.
    At temperature 0 the sampling log-prob is meaningless, and every token has weight 1.
    """
    if turn.sampling.temperature == 0:
        return np.ones((len(turn.tokens), 1), np.float32)
    logs = [[min(math.log(cap), token.logprob - token.sampled_logprob)] for token in turn.tokens]
    return np.exp(np.array(logs, np.float32))


def verdict_example(
    lesson: Lesson, options: VerdictOptions, advantage: float, strength: float = 1.0
) -> Example:
    """The same advantage on every token that the policy chose."""
    ids, old = sampled(lesson.turn)
    counts = free(lesson.turn) * importance(lesson.turn, options.importance_cap)
    return example(lesson, ids, old, counts * (options.rl_weight * advantage), strength=strength)


def standardised(value: float, group: Sequence[float]) -> float:
    """Deviation from the group's mean, in standard deviations; 0 if all values are equal."""
    spread = statistics.pstdev(group) if len(group) > 1 else 0.0
    return (value - statistics.fmean(group)) / spread if spread else 0.0


def example(
    lesson: Lesson,
    ids_NK: IntArray,
    old_NK: FloatArray,
    signal_NK: FloatArray,
    *,
    hint: str | None = None,
    strength: float = 1.0,
    kind: Kind = "own",
    request: TurnRecord | None = None,
) -> Example:
    """A lesson's own reply as an example; ``request``: another turn whose request it is taught to answer."""
    turn, verdict = lesson.turn, lesson.verdict
    off_policy = bool(turn.params.get(OFF_POLICY))
    turn_ids = (turn.id,) if request is None else (turn.id, request.id)
    return Example(
        turn.prompt_ids if request is None else request.prompt_ids,
        [token.id for token in turn.tokens],
        ids_NK,
        old_NK,
        signal_NK,
        Source(kind, turn_ids, turn.user, verdict.score, hint, None if off_policy else turn.policy_version),
        num_free=sum(not token.forced for token in turn.tokens),
        strength=strength,
    )


def join(parts: list[Example]) -> Example:
    """Combine several signals on the same reply: their losses add up, position by position."""
    hint = next((part.source.hint for part in parts if part.source.hint), None)
    return replace(
        parts[0],
        ids_NK=np.concatenate([part.ids_NK for part in parts], axis=1),
        old_NK=np.concatenate([part.old_NK for part in parts], axis=1),
        signal_NK=np.concatenate([part.signal_NK for part in parts], axis=1),
        strength=max(part.strength for part in parts),
        source=replace(parts[0].source, hint=hint),
    )
