"""Weights and optimizer states that nobody needs leave the disk; which versions there were stays known.

A person who comes back after a day goes on from the version that served them, with a fresh optimizer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from openclaw_rl.config import LearnConfig
from openclaw_rl.train.keep import KEEP_STATES, expendable, with_states
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.train.queues import PolicyQueue
from openclaw_rl.types import BASE_VERSION, Scope
from openclaw_rl.types.lora import ADAPTER_FILE

_MANY = 1000
#: Whoever said nothing for so long is idle; so often that is looked at.
_IDLE_S, _EVERY_S = 86400.0, 3600.0


@dataclass
class Disk:
    policies: PolicyQueue
    store: PolicyStore
    settings: LearnConfig
    _looked_at: float = field(default=float("-inf"), init=False)

    def free(self, scope: Scope) -> None:
        """After a version was published."""
        serving = self.policies.serving(scope)
        made, lineage = self.policies.list_policies(_MANY, scope), self.policies.lineage(serving, scope)
        # Not of full weights: a version and its state take gigabytes.
        is_adapter = (self.store.path(serving) / ADAPTER_FILE).exists()
        states = with_states(lineage) if is_adapter else []
        for version in [p.version for p in made if p.version <= serving][KEEP_STATES:]:
            if version not in states:
                self.store.forget(version, only_state=True)
        if self.settings.keep_versions:
            served = self.policies.served_s(scope)
            for version in expendable(made, lineage, served, self.settings.keep_versions, states):
                self._remove(version)

    def free_idle(self) -> None:
        """Now and then: of people who are away, the version that serves them is enough."""
        if not self.settings.keep_versions or time.monotonic() < self._looked_at + _EVERY_S:
            return
        self._looked_at = time.monotonic()
        for scope in self.policies.idle_scopes(time.time() - _IDLE_S):
            serving = self.policies.serving(scope)
            if serving != BASE_VERSION:
                self.store.forget(serving, only_state=True)
            for policy in self.policies.list_policies(_MANY, scope):
                if policy.version != serving:
                    self._remove(policy.version)

    def _remove(self, version: int) -> None:
        teacher = self.settings.teacher_version if self.settings.teacher == "frozen" else None
        if version != teacher and self.store.exists(version):
            self.store.forget(version, only_state=False)
