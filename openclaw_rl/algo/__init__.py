"""Algorithms: from a judged turn to a signal for every token.

A new one is one file and one line in ``ALGORITHMS``; a class outside this package works too, by its
dotted path. The trainer knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from openclaw_rl.algo.binary import Binary
from openclaw_rl.algo.distill import Distill
from openclaw_rl.algo.hybrid import Hybrid, HybridSum
from openclaw_rl.algo.opd import Opd, OpdTopK
from openclaw_rl.plugins import create, load_object
from openclaw_rl.types import Algorithm, Batch, BatchItem, Json, Lesson, Loss, Sample, Scorer

__all__ = ["ALGORITHMS", "AlgorithmOptions", "create_algorithm"]


@dataclass(frozen=True, slots=True)
class AlgorithmOptions:
    """What an algorithm may be built from; each takes what it needs."""

    top_k: int = 4
    gap_clip: float = 1.0
    rl_weight: float = 1.0
    opd_weight: float = 1.0
    accepted_weight: float = 1.0
    baseline: bool = True
    importance_cap: float = 2.0
    hint_choice: Literal["sequence", "token"] = "sequence"
    teacher_k: int = 2
    retell: bool = True


def _binary(o: AlgorithmOptions) -> Binary:
    return Binary(weight=o.rl_weight, importance_cap=o.importance_cap, baseline=o.baseline)


def _opd(o: AlgorithmOptions) -> Opd:
    return Opd(o.gap_clip, o.opd_weight, importance_cap=o.importance_cap, hint_choice=o.hint_choice)


def _opd_topk(o: AlgorithmOptions) -> OpdTopK:
    return OpdTopK(o.top_k, o.gap_clip, o.opd_weight, hint_choice=o.hint_choice)


def _hybrid(o: AlgorithmOptions) -> Hybrid:
    accepting = Binary(weight=o.rl_weight * o.accepted_weight, importance_cap=o.importance_cap)
    teaching = replace(_opd_topk(o), centred=True, teacher_k=o.teacher_k)
    return Hybrid(teaching, accepting, o.retell)


def _hybrid_sum(o: AlgorithmOptions) -> HybridSum:
    return HybridSum(Binary(o.rl_weight, o.importance_cap, baseline=False), _opd_topk(o))


ALGORITHMS: dict[str, Callable[[AlgorithmOptions], Algorithm]] = {
    "hybrid": _hybrid,
    "hybrid-sum": _hybrid_sum,
    "binary": _binary,
    "opd": _opd,
    "opd-topk": _opd_topk,
    "distill": lambda o: Distill(hint_choice=o.hint_choice),
}


def create_algorithm(
    name: str, options: AlgorithmOptions | None = None, loss: str | None = None
) -> Algorithm:
    """By name, or ``pkg.module:Class`` of one's own (called with the options if it takes an argument).

    ``loss`` is the path of a function that takes the place of the algorithm's own; see ``types.Loss``.
    """
    algorithm: Algorithm = create("algorithm", name, ALGORITHMS, options or AlgorithmOptions())
    return algorithm if loss is None else _OtherLoss(algorithm, load_object("loss", loss))


@dataclass(frozen=True)
class _OtherLoss:
    """An algorithm with somebody's own loss."""

    algorithm: Algorithm
    loss: Loss

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        return await self.algorithm.sample(lesson, scorer)

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        return replace(self.algorithm.batch(items, state), loss=self.loss)
