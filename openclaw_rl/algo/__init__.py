"""Algorithms: turn a judged turn into a signal for every token.

A new algorithm is one file and one line in ``ALGORITHMS``; a class outside this package is named by its
dotted path. The trainer knows none of them.
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


#: Each is a dataclass whose fields are set in ``[learn.NAME]`` or with ``--algo-options``.
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "hinted": Hinted,
    "hybrid": Hybrid,
    "hybrid-sum": HybridSum,
    "binary": Binary,
    "opd": Opd,
    "opd-topk": OpdTopK,
    "distill": Distill,
    "rollout": Rollout,
}


#: Batch size while taking over: every upstream reply is an example, so a step waits for several of them, and
#: for four times as many if there is nothing else.
_COPIES = 8


def algorithm_for(scope: Scope, settings: LearnConfig) -> Algorithm:
    """Environments have their own algorithm."""
    return create_algorithm(settings_for(scope, settings))


def settings_for(scope: Scope, settings: LearnConfig, takes_over: bool = False) -> LearnConfig:
    """The settings as they apply to a scope; ``takes_over``: whether it takes over from an upstream model."""
    if not is_environment(scope):
        copies = takes_over and not settings.batch_size
        return settings.model_copy(update={"batch_size": _COPIES}) if copies else settings
    own: Json = {
        "algo": settings.env_algo, "algo_options": settings.env_algo_options, "loss": None, "replay": -1,
        "batch_size": settings.env_batch_size,
        "max_staleness": settings.env_max_staleness, "batch_max_age_s": settings.env_batch_max_age_s,
    }  # fmt: skip
    return settings.model_copy(update=own)


def create_algorithm(settings: LearnConfig) -> Algorithm:
    """By name, or your own ``pkg.module:Class`` (called with the settings if it takes an argument).

    ``--loss`` is the path of a function that replaces the algorithm's own loss; see ``types.Loss``.
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
    """Samples per step: from the settings, otherwise the algorithm's default."""
    if settings.replay > 0 and needs.replay is None:
        raise ValueError(f"--replay is not for --algo {settings.algo}: it weighs an example by its batch")
    replayed = settings.replay if settings.replay >= 0 else needs.replay or 0
    return StepSize(settings.batch_size or needs.batch_size, replayed)


@dataclass(frozen=True)
class _OtherLoss:
    """An algorithm with a custom loss."""

    algorithm: Algorithm
    loss: Loss

    @property
    def needs(self) -> Needs:
        return self.algorithm.needs

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        return await self.algorithm.examples(lesson, scorer)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return replace(self.algorithm.batch(examples, state), loss=self.loss, numbers={})
