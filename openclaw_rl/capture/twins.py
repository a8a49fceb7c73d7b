"""Sessions that are identical word for word: which of them a request continues.

Nothing tells them apart, so any of them will do, as long as each is continued once: a next state must not go
to a turn that has one while its twin gets none. Kept in memory only; after a restart the newest is used.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

#: Of the twins this recent, in seconds, the oldest is continued first; older, abandoned ones come last.
_RECENT_S = 600.0


@dataclass(slots=True)
class _Twin:
    turn_id: str
    at: float
    continued_by: str | None = None
    """Context key of the request that continued it; further requests with that context continue it, too."""
    continued_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TwinClaim:
    chain: str
    session_id: str
    context: str


class Twins:
    """Sessions by the key of their whole conversation. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_chain: OrderedDict[str, dict[str, _Twin]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, chain: str, turn_id: str, session_id: str) -> None:
        with self._lock:
            self._by_chain.setdefault(chain, {})[session_id] = _Twin(turn_id, time.monotonic())
            self._by_chain.move_to_end(chain)
            while len(self._by_chain) > self._limit:
                self._by_chain.popitem(last=False)

    def pick(
        self, chain: str, context: str, stated: str | None, newest: tuple[str, str]
    ) -> tuple[tuple[str, str], TwinClaim | None]:
        """The turn and session to continue, and the claim on them; ``newest`` if there is no choice."""
        with self._lock:
            twins = self._by_chain.get(chain, {})
            if newest[1] not in twins and len(twins) < 2:
                return newest, None
            session_id = stated if stated in twins else self._choose(twins, context)
            if session_id is None:
                return newest, None
            twins[session_id].continued_by, twins[session_id].continued_at = context, time.monotonic()
            return (twins[session_id].turn_id, session_id), TwinClaim(chain, session_id, context)

    def _choose(self, twins: dict[str, _Twin], context: str) -> str | None:
        mine = next((name for name, twin in twins.items() if twin.continued_by == context), None)
        free = [name for name, twin in twins.items() if twin.continued_by is None]
        # A twin created after that continuation waits for its own next state, even with the same text.
        later = [name for name in free if mine and twins[name].at > twins[mine].continued_at]
        if not free or (mine and not later):
            return mine
        since = time.monotonic() - _RECENT_S
        return next((name for name in free if twins[name].at >= since), free[-1])

    def release(self, claim: TwinClaim) -> None:
        with self._lock:
            twin = self._by_chain.get(claim.chain, {}).get(claim.session_id)
            if twin and twin.continued_by == claim.context:
                twin.continued_by = None
