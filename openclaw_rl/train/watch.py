"""Is the new version worse in people's eyes? A test that may be looked at after every verdict.

Betting against the claim "this version is at least as good as the one before": each verdict below the
old mean wins a little, each above loses a little. If the claim is true the stake is not expected to
grow, so it exceeds ``1 / alpha`` with probability at most ``alpha``, however long one watches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_STAKE = 0.5
_MIN_BEFORE = 8


def is_worse(before: Sequence[int], after: Sequence[int], alpha: float = 0.05) -> bool:
    """Whether verdicts (−1, 0, +1) on a version fell significantly below those on the one before it."""
    if len(before) < _MIN_BEFORE:
        return False
    goods = [(score + 1) / 2 for score in before]
    mean = sum(goods) / len(goods)
    spread = math.sqrt(sum((good - mean) ** 2 for good in goods) / len(goods))
    # The old mean is itself uncertain; the benefit of the doubt goes to the new version.
    claimed = max(0.0, mean - spread / math.sqrt(len(goods)))
    wealth = 1.0
    for score in after:
        wealth *= 1 + _STAKE * (claimed - (score + 1) / 2)
        if wealth >= 1 / alpha:
            return True
    return False
