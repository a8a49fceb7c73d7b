"""Grades of a class, from 1 to 6; 1 is the best."""


def passed(grade: int) -> bool:
    """Grades up to 4 pass."""
    return grade <= 4


def best(grades: list[int]) -> int:
    """The best grade of all."""
    return min(grades)


def average(grades: list[int]) -> int:
    """The average, rounded down."""
    return sum(grades) // len(grades)


def all_passed(grades: list[int]) -> bool:
    """Whether everybody passed."""
    return all(grade <= 4 for grade in grades)


def points(correct: int, wrong: int) -> int:
    """Three points for each correct answer, one less for each wrong one."""
    return correct * 3 - wrong


def needs_help(grade: int, missed: int) -> bool:
    """Who has a 5 or a 6, or missed more than 10 days."""
    return grade >= 5 or missed > 10


def seats(rows: int, each: int, broken: int) -> int:
    """How many seats can be used."""
    return rows * each - broken


def name_tag(name: str, room: int) -> str:
    """The name in capital letters, a dash and the room."""
    return name.upper() + "-" + str(room)
