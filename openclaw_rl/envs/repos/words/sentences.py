"""Small things to do with sentences."""


def longest(words: list[str]) -> int:
    """The length of the longest word."""
    return max(len(word) for word in words)


def long_words(words: list[str], least: int) -> list[str]:
    """The words with at least so many letters."""
    return [word for word in words if len(word) >= least]


def initials(words: list[str]) -> str:
    """The first letters of all words, in capital letters."""
    return "".join(word[0].upper() for word in words)


def has_all(words: list[str], text: str) -> bool:
    """Whether every word is in the text."""
    return all(word in text for word in words)
