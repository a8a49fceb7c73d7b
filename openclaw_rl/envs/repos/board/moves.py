"""A board of squares: columns and rows count from 0."""


def inside(column: int, row: int, size: int) -> bool:
    """Whether there is such a square on a board of that size."""
    return column >= 0 and row >= 0 and column < size and row < size


def distance(start: tuple[int, int], end: tuple[int, int]) -> int:
    """Steps from one square to another, not across corners."""
    return abs(end[0] - start[0]) + abs(end[1] - start[1])


def is_dark(column: int, row: int) -> bool:
    """Squares alternate; the one at 0, 0 is dark."""
    return (column + row) % 2 == 0


def number(column: int, row: int, size: int) -> int:
    """Squares are numbered row by row, from 1."""
    return row * size + column + 1
