"""Points of a game."""


def best(points: list[int]) -> int:
    """The highest points."""
    return max(points)


def won(points: list[int], goal: int) -> bool:
    """Whether anybody has reached the goal."""
    return any(each >= goal for each in points)


def lead(mine: int, other: int) -> int:
    """How many points I am ahead; negative if I am behind."""
    return mine - other


def bonus(points: int, level: int) -> int:
    """Points count once for each level, and 10 more from level 3 on."""
    if level >= 3:
        return points * level + 10
    return points * level
