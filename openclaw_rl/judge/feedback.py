"""Ratings that a user writes out: thumbs, marks out of ten, stars, and common ways to say them.

Only unmistakable forms count. Praise and complaints in ordinary words are left to the votes.
"""

from __future__ import annotations

import re

#: A whole message, apart from punctuation and a please or thanks around it.
_WHOLE_POSITIVE = re.compile(
    r"(?:\+\+|\+1|<3|good bot|good (?:answer|reply|response)|upvote|like|liked|approved?|lgtm|thumbs? up|10/10|a\+|"
    r"daumen hoch|pouce en l'air|pulgar arriba|me gusta|pollice in su|top antwort|gute antwort|bonne réponse|"
    r"buena respuesta|buona risposta)",
    re.IGNORECASE,
)
_WHOLE_NEGATIVE = re.compile(
    r"(?:--|-1|−1|bad bot|bad (?:answer|reply|response)|downvote|dislike|disliked|rejected|thumbs? down|0/10|"
    r"daumen runter|pouce en bas|pulgar abajo|no me gusta|pollice (?:in )?(?:giù|verso)|schlechte antwort|"
    r"mauvaise réponse|mala respuesta|cattiva risposta)",
    re.IGNORECASE,
)
_POSITIVE = re.compile(
    r"👍|:\+1:|:thumbs_?up:|\bthumbs?[ -]up\b|\(y\)|\bgood bot\b|\bdaumen hoch\b|\bpouce en l'air\b|\bpulgar(?:es)? "
    r"arriba\b|\bpollice (?:in )?su\b|⭐{4,5}|★{4,5}(?!☆{2})",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"👎|:-1:|:thumbs_?down:|\bthumbs?[ -]down\b|\(n\)|\bbad bot\b|\bdaumen runter\b|\bpouce en bas\b|\bpulgar(?:es)? "
    r"abajo\b|\bpollice (?:in )?giù\b|(?<![⭐★])[⭐★]{1,2}☆{3,4}",
    re.IGNORECASE,
)
#: ``10/10``, ``9 out of 10``, ``2/5 stars``; a fraction inside a sentence about something else is none.
_MARKS = re.compile(
    r"(?:^|[\s(])(?:(?:i(?:'d)?|we) (?:give|rate) (?:it|this|that|you)(?: an?)? |(?:my )?rating:? |solid |a )?"
    r"(?P<mark>\d{1,2}(?:[.,]\d)?)\s?(?:/|out of|von|sur|de|su)\s?(?P<of>10|5)(?: stars?| points?| sterne| étoiles)?"
    r"(?=\s*(?:$|[.!,;)]|would|for (?:you|this|that)))",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:no|not|never|without|isn't|how|where|what|which|button|icon|emoji|kein\w*|add|use|insert|put|send|the|an?)"
    r"\b[^.!?\n]{0,24}$",
    re.IGNORECASE,
)
_PADDING = re.compile(r"\b(?:thanks?(?: you)?|thx|please|danke|merci|gracias|grazie)\b", re.IGNORECASE)


def rating_in(text: str) -> int | None:
    """+1, −1, or None where nothing is rated or the ratings contradict each other."""
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
    """A thumb that is talked about ("add a 👍 button") rates nothing."""
    return any(not _talked_about(text, match) for match in pattern.finditer(text))


def _talked_about(text: str, match: re.Match[str]) -> bool:
    after = text[match.end() : match.end() + 24]
    quoted = text[match.start() - 1 : match.start()] in ("'", '"', "“", "«", "„")
    noun = re.match(
        r"\W*(?:button|icon|emoji|symbol|reaction|counter|sign|character)s?\b", after, re.IGNORECASE
    )
    return quoted or noun is not None or _NEGATED.search(text[: match.start()]) is not None


def _marks(text: str) -> int | None:
    scores = {_score_of(match) for match in _MARKS.finditer(text)} - {0}
    return scores.pop() if len(scores) == 1 else None


def _score_of(match: re.Match[str]) -> int:
    share = float(match["mark"].replace(",", ".")) / float(match["of"])
    if share > 1:
        return 0
    return 1 if share >= 0.7 else -1 if share <= 0.4 else 0
