"""Small things to do with words."""


def backwards(word: str) -> str:
    """The word read from its end."""
    return word[::-1]


def first(word: str) -> str:
    """The first letter."""
    return word[0]


def is_palindrome(word: str) -> bool:
    """Whether the word reads the same from both ends."""
    return word == word[::-1]


def shout(word: str) -> str:
    """The word in capital letters, with an exclamation mark."""
    return word.upper() + "!"


def vowels(word: str) -> int:
    """How many of a, e, i, o, u are in the word."""
    return sum(1 for letter in word if letter in "aeiou")
