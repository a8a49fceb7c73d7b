"""Brings back the optimizer state of a version that has lost it, by repeating the steps that led to it.

Only some versions keep their state. Unlearning that goes back to an older one must not go on with a new
optimizer: the result would differ from what training without the forgotten turns gives. The steps since the
newest ancestor with a state, or since the base, are repeated from the recorded samples and seeds. The state
is kept only if the weights that come out are those on disk, bit for bit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.train.policies import TRAINER_STATE, PolicyStore
from openclaw_rl.train.queues import PolicyQueue
from openclaw_rl.train.recipes import Recipes
from openclaw_rl.train.steps import TrainingSet, take_steps
from openclaw_rl.types import BASE_VERSION, Policy, Scope, Trainer, Weights

#: In a version's metrics: its first step began with a new optimizer, since its parent had lost its own.
NEW_OPTIMIZER = "new_optimizer"
_MANY = 1000
_PART = ".rebuild.part"


class Versions(Protocol):
    """What finding the steps to repeat needs of the ledger."""

    def lineage(self, version: int, scope: Scope) -> list[int]: ...

    def policy(self, version: int) -> Policy | None: ...

    def list_policies(self, limit: int, scope: Scope) -> list[Policy]: ...

    def num_pruned(self, version: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Repeat:
    """The steps to repeat, oldest first, and the version to begin with."""

    start: int
    versions: list[int]

    def __str__(self) -> str:
        start = "the base" if self.start == BASE_VERSION else f"version {self.start}"
        last, number = self.versions[-1], len(self.versions)
        steps = "one step" if number == 1 else f"{number} steps"
        return f"the optimizer state of version {last} is gone, {steps} from {start} on to be repeated"


def find_repeat(policies: Versions, store: PolicyStore, version: int, scope: Scope) -> Repeat | None:
    """How to bring back the state that unlearning needs; None if it is there, or was not used before."""
    if version == BASE_VERSION or store.has_state(version) or not _was_used(policies, version, scope):
        return None
    versions: list[int] = []
    for ancestor in policies.lineage(version, scope):
        begins = bool(versions) and _is_new(policies, versions[-1]) and store.has_weights(ancestor)
        if ancestor == BASE_VERSION or store.has_state(ancestor) or begins:
            return Repeat(ancestor, versions[::-1])
        versions.append(ancestor)
    return None


def find_pruned(policies: Versions, repeat: Repeat) -> list[int]:
    """Those of the steps that cannot be repeated: samples were pruned."""
    return [version for version in repeat.versions if policies.num_pruned(version)]


def _was_used(policies: Versions, version: int, scope: Scope) -> bool:
    """Whether a version that was undone had been trained from this one with its state, and none without."""
    children = [p for p in policies.list_policies(_MANY, scope) if (p.parent or BASE_VERSION) == version]
    anew = any(p.gate.get(NEW_OPTIMIZER) or p.metrics.get(NEW_OPTIMIZER) for p in children)
    return not anew and any(p.gate.get("undone") for p in children)


def _is_new(policies: Versions, version: int) -> bool:
    policy = policies.policy(version)
    return policy is not None and bool(policy.metrics.get(NEW_OPTIMIZER))


@dataclass
class Rebuild:
    policies: PolicyQueue
    store: PolicyStore
    recipes: Recipes
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    """Runs arithmetic in the trainer's thread."""
    progress: Callable[[str], None]

    async def state_of(self, version: int, scope: Scope, make_trainer: Callable[[], Trainer]) -> bool:
        """Bring it back if unlearning needs it; True if the trainer was used."""
        repeat = find_repeat(self.policies, self.store, version, scope)
        if repeat is None:
            return False
        self.progress(str(repeat))
        part = self.store.folder / _PART
        try:
            problem = await self._repeat(repeat, scope, make_trainer, part)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if problem:
            self.progress(f"not bit for bit: {problem}; training goes on with a new optimizer")
        return True

    async def _repeat(
        self, repeat: Repeat, scope: Scope, make_trainer: Callable[[], Trainer], part: Path
    ) -> str | None:
        """Why the state could not be brought back, if so."""
        if pruned := find_pruned(self.policies, repeat):
            return f"samples of version {pruned[0]} were pruned"
        trainer = await self.in_thread(make_trainer)
        await self.in_thread(lambda: trainer.resume(self._weights(repeat.start)))
        before: Path | None = None
        for version in repeat.versions:
            policy = self.policies.policy(version)
            items = self.policies.items(version)
            if policy is None or not items:
                return f"samples of version {version} are gone"
            training_set = await self.recipes.training_set(policy, items)
            is_new, folder = before is not None and _is_new(self.policies, version), part / str(version)
            resumed = Weights.in_folder(version, before, scope) if is_new and before else None
            await self.in_thread(partial(self._step, trainer, policy, training_set, folder, resumed))
            before = folder
        return self._keep(repeat.versions[-1], part / str(repeat.versions[-1]))

    def _weights(self, version: int) -> Weights | None:
        return self.store.weights(version) if version != BASE_VERSION else None

    def _step(
        self, trainer: Trainer, policy: Policy, training_set: TrainingSet, folder: Path, anew: Weights | None
    ) -> None:
        if anew is not None:
            (anew.folder / TRAINER_STATE).unlink(missing_ok=True)
            trainer.resume(anew)
        state, parent = trainer.state, policy.parent or BASE_VERSION
        algorithm = self.recipes.algorithm_for(policy.scope)
        take_steps(trainer, algorithm, training_set, state, self.recipes.seed(policy), parent)
        folder.mkdir(parents=True, exist_ok=True)  # as for a version
        trainer.save(folder, state)

    def _keep(self, version: int, folder: Path) -> str | None:
        if not (folder / TRAINER_STATE).exists() or not self.store.equals(version, folder):
            return f"repeating the steps did not give the weights of version {version}"
        os.replace(folder / TRAINER_STATE, self.store.path(version) / TRAINER_STATE)
        return None
