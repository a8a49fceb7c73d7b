"""Rolls back to an earlier version if users like a new one less, a wish fails, or weights are gone.

Each rollback is a promotion in the ledger, which the server follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openclaw_rl.train.gate import IN_FORM
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.train.queues import PolicyQueue, WishLimits
from openclaw_rl.train.watch import Reaction, better_before
from openclaw_rl.types import BASE_VERSION, Policy, Scope

TAKEN_BACK = "what it was made for was taken back"
#: Number of versions back whose verdicts are compared.
_FAR = 200
#: Verdicts that a version needs before it can count as better than the one from before a wish.
_LEAST_VERDICTS = 3
#: Share of replies in the wished-for form that makes a version worth keeping.
_LEAST_IN_FORM = 0.25


class Rollback:
    """``fingerprint`` identifies the model being trained."""

    def __init__(
        self,
        policies: PolicyQueue,
        wishes: WishLimits,
        store: PolicyStore,
        fingerprint: str,
        progress: Callable[[str], None],
    ) -> None:
        self._policies, self._wishes, self._store = policies, wishes, store
        self._fingerprint, self._progress = fingerprint, progress
        self._looked: dict[Scope, tuple[int, int]] = {}
        """Which version served when verdicts were last compared, and how many verdicts there were."""

    def look(self, scope: Scope) -> bool:
        """Roll back if needed; True if another version serves now."""
        before = self._policies.serving(scope)
        self._watch(scope)
        self._abandon_wishes(scope)
        return self._policies.serving(scope) != before

    def trainable(self, scope: Scope) -> int:
        """The serving version, as the one to train from.

        If its weights are missing, damaged or another model's, its newest usable ancestor is promoted.
        """
        serving = version = self._policies.serving(scope)
        problem = None
        while version != BASE_VERSION and (found := self._problem_of(version)) is not None:
            problem, policy = problem or found, self._policies.policy(version)
            version = (policy.parent if policy else None) or BASE_VERSION
        if problem is not None:
            self._go(version, f"back from version {serving}: {problem}", scope)
        return version

    def _problem_of(self, version: int) -> str | None:
        if not self._store.has_weights(version):
            return "its weights are damaged" if self._store.exists(version) else "its weights are gone"
        made_from = self._store.manifest(version).get("fingerprint", "")
        known = made_from and self._fingerprint
        return "it was trained from another model" if known and made_from != self._fingerprint else None

    def _watch(self, scope: Scope) -> None:
        """Roll back to the version after which verdicts fell significantly."""
        serving = self._policies.serving(scope)
        if serving == BASE_VERSION:
            return
        lineage = self._policies.lineage(serving, scope)[:_FAR]
        reactions = [Reaction(*row) for row in self._policies.reactions(lineage, scope)]
        looked, self._looked[scope] = self._looked.get(scope), (serving, len(reactions))
        if looked == (serving, len(reactions)):
            return
        if (target := better_before(lineage, reactions)) is not None:
            why = f"rolled back from version {serving}: verdicts have fallen since version {target}"
            self._go(target, why, scope)

    def _abandon_wishes(self, scope: Scope) -> None:
        """End wishes: one that cannot be learned is dropped, one taken back is undone with all it taught.

        What cannot be had: back to the best version so far. While something else is wished for, that is
        learned on, by a teacher who is told of nothing else.
        """
        for wish in self._wishes.ending(scope):
            serving = self._policies.serving(scope)
            if wish.is_unwanted:
                self._unlearn(wish, serving)
                continue
            target = serving if self._wishes.any_active(scope) else self._best_since(wish.served, scope)
            if target != serving:
                self._go(target, f"back from version {serving}: {wish.problem}", scope)
            self._wishes.ended(wish)

    def _unlearn(self, wish: Any, serving: int) -> None:
        """Exactly what was learned for it, and for what it had replaced; all else is learned again."""
        gone = [wish, *self._wishes.over_since(wish)]
        turn_ids = [turn for each in gone for turn in self._policies.turns_of_wish(each.turn_id)]
        ends_as = self._wishes.end_of(wish)
        self._policies.change_wish(wish, turn_ids, wish.text, True, self._store.has_weights, ends_as)
        for version in self._policies.forgotten_versions():
            self._store.forget(version, only_state=False)
        if self._policies.serving(wish.scope) != serving:
            self._progress(f"back from version {serving}: {TAKEN_BACK}")

    def _best_since(self, before: int, scope: Scope) -> int:
        """The version that pleased most; the earliest of equals. None that was rolled back, by hand or not.

        If none pleased more often than not, the one whose replies had the wished-for form most often when it
        was checked: a version that meets a wish now and then is better than one that never does.
        """
        lineage = self._policies.lineage(self._policies.serving(scope), scope)
        found = (self._policies.policy(version) for version in sorted(lineage) if version > before)
        made = [policy for policy in found if policy is not None]
        pleased = {p.version: _mean(self._policies.scores_of(p.version, scope)) for p in made}
        if (best := _highest(pleased, 0.0)) is None:
            best = _highest({p.version: _in_form(p) for p in made}, _LEAST_IN_FORM)
        return next(version for version in lineage if version <= before) if best is None else best

    def _go(self, version: int, why: str, scope: Scope) -> None:
        while version != BASE_VERSION and not self._store.has_weights(version):
            policy = self._policies.policy(version)
            version = (policy.parent if policy else None) or BASE_VERSION
        self._policies.promote(version, why, scope)
        self._progress(why)


def _mean(verdicts: Sequence[int]) -> float:
    return sum(verdicts) / len(verdicts) if len(verdicts) >= _LEAST_VERDICTS else 0.0


def _in_form(policy: Policy) -> float:
    """The share of replies with the wished-for form; 0 if it was not measured."""
    checks = policy.gate.get("checks", ())
    return next((float(check["value"]) for check in checks if check["name"] == IN_FORM), 0.0)


def _highest(values: Mapping[int, float], least: float) -> int | None:
    """The key of the first highest value above ``least``."""
    key = max(values, key=lambda each: values[each], default=None)
    return key if key is not None and values[key] > least else None
