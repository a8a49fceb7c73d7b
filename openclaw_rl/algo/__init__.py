"""Algorithms: from a judged turn to a signal for every token.

A new one is one file and one line in ``ALGORITHMS``; a class outside this package works too, by its
dotted path. The trainer knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from openclaw_rl.algo.binary import Binary
from openclaw_rl.algo.distill import Distill
from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.algo.hybrid import Hybrid, HybridSum
from openclaw_rl.algo.opd import Opd, OpdTopK
from openclaw_rl.algo.rollout import Rollout
from openclaw_rl.config import LearnConfig
from openclaw_rl.plugins import create, load_object
from openclaw_rl.scopes import is_environment
from openclaw_rl.types import Algorithm, Batch, Example, Json, Lesson, Loss, Needs, Scope, Scorer

__all__ = ["ALGORITHMS", "StepSize", "algorithm_for", "create_algorithm", "settings_for", "step_size"]


def _binary(o: LearnConfig) -> Binary:
    return Binary(weight=o.rl_weight, importance_cap=o.importance_cap, baseline=o.reward_baseline)


def _opd(o: LearnConfig) -> Opd:
    return Opd(o.gap_clip, o.opd_weight, importance_cap=o.importance_cap, hint_choice=o.hint_choice)


def _opd_topk(o: LearnConfig) -> OpdTopK:
    return OpdTopK(o.top_k, o.gap_clip, o.opd_weight, hint_choice=o.hint_choice)


def _hybrid(o: LearnConfig) -> Hybrid:
    accepting = Binary(weight=o.rl_weight * o.accepted_weight, importance_cap=o.importance_cap)
    teaching = replace(_opd_topk(o), centred=True, teacher_k=o.teacher_k)
    return Hybrid(teaching, accepting, o.retell)


def _hybrid_sum(o: LearnConfig) -> HybridSum:
    return HybridSum(Binary(o.rl_weight, o.importance_cap, baseline=False), _opd_topk(o))


def _rollout(o: LearnConfig) -> Rollout:
    return Rollout(o.outcome_weight, o.process_weight, o.importance_cap, o.env_batch_size, o.env_step_scale)


#: A class that is a dataclass is made from ``[learn.NAME]``; a function from the section.
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "hinted": Hinted,
    "hybrid": _hybrid,
    "hybrid-sum": _hybrid_sum,
    "binary": _binary,
    "opd": _opd,
    "opd-topk": _opd_topk,
    "distill": lambda o: Distill(hint_choice=o.hint_choice),
    "rollout": _rollout,
}


#: Every reply of a model elsewhere is an example: a step is taken for several, four times as many if all are.
_COPIES = 8


def algorithm_for(scope: Scope, settings: LearnConfig) -> Algorithm:
    """Episodes in environments are learned from in their own way."""
    return create_algorithm(settings_for(scope, settings))


def settings_for(scope: Scope, settings: LearnConfig, takes_over: bool = False) -> LearnConfig:
    """What holds for conversations, as it is for a scope; ``takes_over`` from a model elsewhere."""
    if not is_environment(scope):
        copies = takes_over and not settings.batch_size
        return settings.model_copy(update={"batch_size": _COPIES}) if copies else settings
    own: Json = {
        "algo": settings.env_algo, "algo_options": {}, "loss": None, "replay": -1, "batch_size": 0,
        "max_staleness": settings.env_max_staleness, "batch_max_age_s": settings.env_batch_max_age_s,
    }  # fmt: skip
    return settings.model_copy(update=own)


def create_algorithm(settings: LearnConfig) -> Algorithm:
    """By name, or ``pkg.module:Class`` of one's own (called with the settings if it takes an argument).

    ``--loss`` is the path of a function that takes the place of the algorithm's own; see ``types.Loss``.
    """
    algorithm: Algorithm = create("algorithm", settings.algo, ALGORITHMS, settings, settings.algo_options)
    if settings.loss is None:
        return algorithm
    return _OtherLoss(algorithm, load_object("loss", settings.loss))


@dataclass(frozen=True, slots=True)
class StepSize:
    samples: int
    replayed: int


def step_size(settings: LearnConfig, needs: Needs) -> StepSize:
    """What a step holds: as the settings say, else as the algorithm asks."""
    if settings.replay > 0 and needs.replay is None:
        raise ValueError(f"--replay is not for --algo {settings.algo}: it weighs an example by its batch")
    replayed = settings.replay if settings.replay >= 0 else needs.replay or 0
    return StepSize(settings.batch_size or needs.batch_size, replayed)


@dataclass(frozen=True)
class _OtherLoss:
    """An algorithm with somebody's own loss."""

    algorithm: Algorithm
    loss: Loss

    @property
    def needs(self) -> Needs:
        return self.algorithm.needs

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        return await self.algorithm.examples(lesson, scorer)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return replace(self.algorithm.batch(examples, state), loss=self.loss, numbers={})
