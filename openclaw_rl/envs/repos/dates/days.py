"""Days, months and years as numbers."""


def is_leap(year: int) -> bool:
    """Years that 4 divides, but of those that 100 divides only those that 400 divides."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(month: int, leap: bool) -> int:
    """How many days a month has."""
    if month == 2:
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


def is_weekend(day: int) -> bool:
    """Days 6 and 7 of a week are its weekend."""
    return day >= 6


def weeks(days: int) -> int:
    """How many whole weeks there are in so many days."""
    return days // 7
