"""Confidence intervals for proportions."""

from __future__ import annotations

import math


def interval(successes: int, number: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval, which also holds for few attempts and for proportions near 0 and 1."""
    if not number:
        return 0.0, 1.0
    share = successes / number
    middle = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return max(0.0, middle - half), min(1.0, middle + half)
