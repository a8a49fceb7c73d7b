"""Times of a day in minutes since midnight."""


def minutes(hours: int, rest: int) -> int:
    """Hours and minutes as minutes."""
    return hours * 60 + rest


def hour(time: int) -> int:
    """The hour of a time."""
    return time // 60


def between(start: int, end: int) -> int:
    """Minutes from start to end; 0 if the end comes before the start."""
    return max(end - start, 0)


def is_open(time: int, opens: int, closes: int) -> bool:
    """Open from the minute it opens until just before it closes."""
    return opens <= time and time < closes
