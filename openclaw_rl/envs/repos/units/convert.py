"""Measures into other measures, in whole numbers."""


def meters(kilometers: int, rest: int) -> int:
    """Kilometers and meters as meters."""
    return kilometers * 1000 + rest


def kilometers(meters: int) -> int:
    """Whole kilometers in so many meters."""
    return meters // 1000


def fahrenheit(celsius: int) -> int:
    """Degrees Celsius as degrees Fahrenheit."""
    return celsius * 9 // 5 + 32


def boils(celsius: int) -> bool:
    """Water boils at 100 degrees and above."""
    return celsius >= 100


def coldest(degrees: list[int]) -> int:
    """The lowest of all degrees."""
    return min(degrees)


def freezing(degrees: list[int]) -> bool:
    """Whether any of the degrees is below 0."""
    return any(degree < 0 for degree in degrees)


def area(width: int, height: int) -> int:
    """The area of a rectangle."""
    return width * height


def border(width: int, height: int) -> int:
    """The length of a rectangle's border."""
    return 2 * width + 2 * height


def fits(width: int, height: int, size: int) -> bool:
    """Whether a rectangle fits into a square of that size."""
    return width <= size and height <= size
