"""Moves traffic from an upstream model to the local one, share by share, according to verdicts on both.

Two sequential tests by betting, as in ``watch``; both are valid after every verdict. *Worse*: users like the
local replies less than the upstream's; then the upstream answers everything again, until there is a newer
version. This test restarts every ``RUN`` verdicts, so that a long good record does not hide a recent decline.
*As good*: users like them no less, up to a margin; then the share goes up one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from openclaw_rl.train.watch import Reaction, max_evidence
from openclaw_rl.types import BASE_VERSION, UPSTREAM_VERSION, Policy, Scope

log = logging.getLogger(__name__)
#: The largest loss in mean verdict that a takeover accepts, as a share of the verdict's range.
MARGIN = 0.15
#: Evidence needed to raise the share; a false claim reaches it with probability at most 1/20.
ENOUGH = 20.0
#: Evidence needed to go back, in each run of ``RUN`` verdicts; a false claim reaches it with at most 1/200.
WORSE, RUN = 200.0, 50
_STAKES = (0.3, 0.6, 0.9)
_BLOCK = 4
#: How many of the upstream's newest verdicts to compare with; each local verdict uses up some.
_REFERENCE = 8 * RUN
FIRST = "a version has learned from its answers"
RISES = "people like its replies as much"
FALLS = "people like its replies less: back to the other model, until there is a newer version"
BASE_SERVES = "no trained version serves: it was rolled back or forgotten"


class TrafficShare(Protocol):
    @property
    def share(self) -> float: ...

    @property
    def at(self) -> float: ...


class TrafficShares(Protocol):
    """Traffic shares in the ledger. Synchronous."""

    def changed_scopes(self, seen: Any) -> tuple[list[Scope], Any]:
        """Scopes that changed since ``seen``, and the ``seen`` for the next call."""

    def current(self, scope: Scope) -> TrafficShare: ...

    def go(self, scope: Scope, share: float, why: str) -> None: ...

    def reactions(self, scope: Scope, since: float = 0.0) -> list[tuple[int, str, int]]: ...


class Served(Protocol):
    """Policy versions in the ledger. Synchronous."""

    def serving(self, scope: Scope) -> int: ...

    def policy(self, version: int) -> Policy | None: ...

    @property
    def leads(self) -> Callable[[Scope], bool]: ...


def take_over_shares(text: str) -> tuple[float, ...]:
    """Parse shares; ValueError unless they rise from above 0 to at most 1."""
    try:
        shares = tuple(float(each) for each in text.split(","))
    except ValueError:
        shares = ()
    if not shares or list(shares) != sorted(set(shares)) or shares[0] <= 0 or shares[-1] > 1:
        raise ValueError(f"--take-over-shares is {text!r}; it must be rising shares such as 0.05,0.25,1")
    return shares


def as_good(reactions: Sequence[Reaction]) -> float:
    """Evidence that local replies are worse by at most the margin: the wealth of a bet that started with 1.

    ``reactions`` are to both models, in order of arrival. Each to a local reply is compared with the mean of
    up to ``_BLOCK`` to upstream ones of the same user, which varies less than a single one. Who is compared
    with whom depends on the order alone, never on a score, so the bet stays fair.
    """
    pools: dict[tuple[str, bool], list[float]] = {}
    wealth = [1.0] * len(_STAKES)
    for reaction in reactions:
        is_local = reaction.version != UPSTREAM_VERSION
        pools.setdefault((reaction.user, is_local), []).append((reaction.score + 1) / 2)
        upstream, here = (pools.get((reaction.user, local)) for local in (False, True))
        if upstream and here:
            block = [upstream.pop() for _ in range(min(_BLOCK, len(upstream)))]
            gain = here.pop() - sum(block) / len(block) + MARGIN
            wealth = [each * (1 + bet * gain) for each, bet in zip(wealth, _STAKES, strict=True)]
    return sum(wealth) / len(wealth)


class TakeOver:
    """Checks every scope periodically and adjusts its traffic share."""

    def __init__(
        self, shares: TrafficShares, served: Served, steps: Sequence[float], poll_s: float = 2.0
    ) -> None:
        self._shares, self._served, self._steps, self._poll_s = shares, served, tuple(steps), poll_s
        self._seen: Any = None

    async def run(self) -> None:
        """Run until cancelled. Keeps trying while the database is unavailable."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception as error:
                log.warning("updating the take-over share failed: %s", type(error).__name__)
            await asyncio.sleep(self._poll_s)

    def look(self) -> None:
        scopes, self._seen = self._shares.changed_scopes(self._seen)
        for scope in scopes:
            if (move := self._move(scope)) is not None and self._served.leads(scope):
                self._shares.go(scope, *move)

    def _move(self, scope: Scope) -> tuple[float, str] | None:
        current = self._shares.current(scope)
        policy = self._served.policy(self._served.serving(scope))
        if policy is None or policy.version == BASE_VERSION:
            return (0.0, BASE_SERVES) if current.share else None
        if not current.share:
            newer = policy.published_at is not None and policy.published_at > current.at
            return (self._steps[0], FIRST) if newer else None
        since = [Reaction(*row) for row in self._shares.reactions(scope, current.at)]
        here = [reaction for reaction in since if reaction.version > BASE_VERSION]
        before = [Reaction(*row) for row in self._shares.reactions(scope)]
        elsewhere = [reaction for reaction in before if reaction.version == UPSTREAM_VERSION]
        lately = here[(len(here) - 1) // RUN * RUN :]
        if here and max_evidence(elsewhere[-_REFERENCE:], lately) >= WORSE:
            return 0.0, FALLS
        higher = [share for share in self._steps if share > current.share]
        # The base only answers in an outage, and takes over nothing.
        if higher and as_good([each for each in since if each.version != BASE_VERSION]) >= ENOUGH:
            return higher[0], RISES
        return None
