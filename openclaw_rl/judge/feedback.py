"""Explicit ratings in a user's message: thumbs, marks out of ten, stars, and common ways to write them.

Only unambiguous forms count. Praise and complaints in ordinary words are left to the votes.
"""

from __future__ import annotations

import re

from openclaw_rl.patterns import read_patterns

_TABLE = read_patterns("feedback", "openclaw_rl.judge")


def _any_of(name: str) -> re.Pattern[str]:
    return re.compile("|".join(_TABLE[name]), re.IGNORECASE)


_WHOLE_POSITIVE, _WHOLE_NEGATIVE = _any_of("whole_positive"), _any_of("whole_negative")
_POSITIVE, _NEGATIVE = _any_of("positive"), _any_of("negative")
_ABOUT, _MARKS = _any_of("about"), _any_of("marks")
_PADDING = re.compile(r"\b(?:thanks?(?: you)?|thx|please|danke|merci|gracias|grazie)\b", re.IGNORECASE)


def rating_in(text: str) -> int | None:
    """+1, −1, or None if there is no rating or ratings contradict each other."""
    text = text.replace("’", "'").strip()
    found = {score for score in (_whole(text), _marks(text)) if score}
    found |= {1} if _rated(_POSITIVE, text) else set()
    found |= {-1} if _rated(_NEGATIVE, text) else set()
    return found.pop() if len(found) == 1 else None


def _whole(text: str) -> int | None:
    core = _PADDING.sub("", text).strip(" \n\t.!,;:'\"")
    if _WHOLE_POSITIVE.fullmatch(core):
        return 1
    return -1 if _WHOLE_NEGATIVE.fullmatch(core) else None


def _rated(pattern: re.Pattern[str], text: str) -> bool:
    """A thumb that is only mentioned ("add a 👍 button") is no rating."""
    return any(not _talked_about(text, match) for match in pattern.finditer(text))


def _talked_about(text: str, match: re.Match[str]) -> bool:
    after = text[match.end() : match.end() + 24]
    quoted = text[match.start() - 1 : match.start()] in ("'", '"', "“", "«", "„")
    noun = re.match(
        r"\W*(?:button|icon|emoji|symbol|reaction|counter|sign|character)s?\b", after, re.IGNORECASE
    )
    return quoted or noun is not None or _ABOUT.search(text[: match.start()]) is not None


def _marks(text: str) -> int | None:
    scores = {_score_of(match) for match in _MARKS.finditer(text)} - {0}
    return scores.pop() if len(scores) == 1 else None


def _score_of(match: re.Match[str]) -> int:
    share = float(match["mark"].replace(",", ".")) / float(match["of"])
    if share > 1:
        return 0
    return 1 if share >= 0.7 else -1 if share <= 0.4 else 0
