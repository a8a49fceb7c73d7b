"""Unambiguous reactions to a reply in languages other than English.

The votes come from a small model that was trained mostly on English. Tables for each language therefore
recognise common praise, complaints and follow-up questions; everything else is left to the votes.
"""

from __future__ import annotations

import re
from functools import cache

from openclaw_rl.patterns import read_patterns
from openclaw_rl.text import SCRIPTS, by_script

_ENGLISH = re.compile(
    r"\b(?:the|is|are|was|were|it|its|this|that|these|you|your|and|or|of|not|what|how|who|when|where|which|my|"
    r"please|to|but|with|have|has|had|i|i'm|i'll|we|they|me|in|on|at|as|for|from|too|can|could|would|will|no|"
    r"yes|now|then|so|if|do|does|did|use|more|less|thanks|thank|an|a|be|super|top|perfect|excellent)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|„[^“”]*[“”]|「[^」]*」")
_QUESTION = re.compile(r"[?？]\W*$")


@cache
def _signs() -> dict[str, dict[str, re.Pattern[str]]]:
    """Language -> its common words, complaints, praise, and how its questions begin."""
    table: dict[str, dict[str, re.Pattern[str]]] = {}
    for section, forms in read_patterns("languages", "openclaw_rl.judge").items():
        language, _, name = section.rpartition("_")
        form = "|".join(f"(?:{form})" for form in forms)
        table.setdefault(language, {})[name] = re.compile(form, re.IGNORECASE)
    return table


def language_of(text: str) -> str | None:
    """The language of a text, if there is a table for it; None for English and if in doubt."""
    if (language := by_script(text)) is not None:
        return language
    signs = _signs()
    counts = {
        language: sum(len(signs[language][name].findall(text)) for name in ("words", "complaint", "praise"))
        for language in signs
        if language not in SCRIPTS
    }
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > len(_ENGLISH.findall(text)) else None


def reaction(text: str) -> int | None:
    """+1, 0 or −1 if the words are unambiguous; None otherwise, and for English."""
    bare = _QUOTED.sub(" ", text.replace("’", "'"))
    if (language := language_of(bare)) is None:
        return None
    signs = _signs()[language]
    complains, praises = (bool(signs[name].search(bare)) for name in ("complaint", "praise"))
    if complains or praises:
        return None if complains and praises else (-1 if complains else 1)
    asks = _QUESTION.search(bare) and signs["question"].search(bare)
    return 0 if asks else None


def complains(text: str) -> bool:
    """Whether the text contains a complaint in its language; False for English."""
    language = language_of(text)
    return language is not None and bool(_signs()[language]["complaint"].search(text))
