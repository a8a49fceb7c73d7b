"""What a version is trained on, and with which seed; asked again later, the answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from openclaw_rl.train.lessons import SampleMaker
from openclaw_rl.train.queues import PolicyQueue, WishLimits
from openclaw_rl.train.steps import TrainingSet
from openclaw_rl.types import BASE_VERSION, Algorithm, Example, Policy, Scope

_MANY = 1000


@dataclass
class Recipes:
    policies: PolicyQueue
    wishes: WishLimits
    sampler: SampleMaker
    algorithm_for: Callable[[Scope], Algorithm]
    anchored: bool
    """Whether versions serve under any system prompt, and are trained on jobs with one, too."""

    async def training_set(self, policy: Policy, items: list[Example]) -> TrainingSet:
        needs = self.algorithm_for(policy.scope).needs
        anchors: list[Example] = []
        if needs.anchors and self.anchored:
            anchors = await self.sampler.anchors(2 * needs.steps * needs.anchors, self.seed(policy))
        return TrainingSet(items, self._replayed(policy, items), anchors, self._num_rejected(policy))

    def seed(self, policy: Policy) -> int:
        """The depth in the lineage, not the version number: retraining without a sample keeps the seed."""
        return len(self.policies.lineage(policy.parent or BASE_VERSION, policy.scope))

    def _num_rejected(self, policy: Policy) -> int:
        """Number of consecutive rejected versions before this one."""
        made = self.policies.list_policies(_MANY, policy.scope)
        # Undone versions do not count: retraining without a sample must give what never seeing it would.
        before = [p for p in made if p.version < policy.version and not p.gate.get("undone")]
        return sum(1 for _ in takewhile(lambda p: p.status == "rejected", before))

    def _replayed(self, policy: Policy, items: list[Example]) -> list[Example]:
        """What this version replays: accepted replies, or examples taught for the same wishes."""
        replayed, scope = self.policies.replayed(policy.version), policy.scope
        if not (pool := self.algorithm_for(scope).needs.pool):
            return replayed
        # A step takes samples for current wishes only, so they name the wishes of that time.
        then = {item.source.user: item.source.hint for item in items if item.source.kind == "hinted"}

        def wished(user: str) -> str:
            return then.get(user) or self.wishes.current(user, scope)

        return [*replayed, *self.policies.pool(scope, wished, pool, policy.version)]
