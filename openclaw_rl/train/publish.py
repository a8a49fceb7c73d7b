"""Publishing has one path: the ledger names a version for each scope, and every server follows it.

A step that passed the gate, a rollback and a manual promotion each end as a row in the ledger. ``follow``
makes an engine agree with the ledger: the server calls it twice a second, and the writer of a row calls it
at once, so that nobody waits for the next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, EVERYONE, Engine, Policy, Scope, Weights


class PolicyTable(Protocol):
    """The ledger's record of which version serves which scope. Synchronous."""

    def serving_table(self) -> dict[Scope, int]: ...

    def policy(self, version: int) -> Policy | None: ...

    def promote(self, version: int, why: str, scope: Scope) -> None: ...


async def follow(
    policies: PolicyTable, engine: Engine, weights_of: Callable[[int], Weights]
) -> dict[Scope, int]:
    """Serve every scope the version that the ledger names, or the base; returns the named versions.

    A version that cannot be loaded affects its own scope only, which gets the newest ancestor that can be
    loaded; the first such error is raised at the end.
    """
    named, status = await asyncio.to_thread(policies.serving_table), engine.status()
    problems: list[Exception] = []
    for scope in {**status.serving, **named}:
        version: int | None = named.get(scope, BASE_VERSION)
        while version is not None:
            try:
                if version != status.version_for(scope):
                    if version not in engine.status().versions:
                        await engine.load(await asyncio.to_thread(weights_of, version))
                    await engine.serve_version(version, scope)
                break
            except (ValueError, OSError) as problem:
                problems.append(problem)
                version = await asyncio.to_thread(_before, policies, version)
    if problems:
        raise problems[0]
    return named


def _before(policies: PolicyTable, version: int) -> int | None:
    if version == BASE_VERSION:
        return None
    policy = policies.policy(version)
    return (policy.parent if policy else None) or BASE_VERSION


def promote(
    policies: PolicyTable, store: PolicyStore, version: int, why: str, scope: Scope = EVERYONE
) -> None:
    """Promote a version manually, whether or not it passed the gate; ValueError if it cannot serve."""
    if version != BASE_VERSION and (problem := store.problem(version)) is not None:
        raise ValueError(problem)
    policy = policies.policy(version)
    if policy is not None and not policy.metrics.get("finite", True):
        raise ValueError(f"version {version} holds numbers that are not finite; choose another version")
    policies.promote(version, why, scope)
