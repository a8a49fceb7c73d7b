"""Does a reply show a wish? Plain predicates on text, by name; a wish names those it needs.

None of them checks what the reply is about. ``on_topic`` does, so a reply that has only the wished form does
not count as an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_SENTENCE_END = re.compile(r"[.!?…]+(?=\s|$)")
_BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+\S", re.MULTILINE)
_FUNCTION_WORDS = {
    "en": "the of and to in is that it for as with are on be by this which or from an",
    "fr": "le la les des est une dans pour que qui sur avec par sont du et il elle ce au aux ou",
    "es": "el la los las es una en para que por con del se son y como su lo al un o",
    "de": "der die das ist und ein eine in zu von mit den für auf sie es nicht auch im wird oder",
    "it": "il lo la gli è una di che per con del sono nel e un della le in come si",
    "pt": "o a os as é uma em para que por com do da são e um no na se como",
    "nl": "de het een en van in is dat op te zijn voor met die door aan of ook er",
}
_WORDS_OF = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_LEAST_FOREIGN_WORDS = 6


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences(text: str) -> int:
    body = text.strip()
    if not body:
        return 0
    return len(_SENTENCE_END.findall(body)) + (body[-1] not in ".!?…\"'”)")


def language(text: str) -> str:
    """The language with the most function words in the text; English if the text is too short to tell."""
    found = [word.lower() for word in words(text)]
    shares = {name: sum(word in known for word in found) for name, known in _WORDS_OF.items()}
    best = max(shares, key=lambda name: (shares[name], name == "en"))
    return best if len(found) >= _LEAST_FOREIGN_WORDS and shares[best] else "en"


def _clean(text: str) -> str:
    """Without markup and quotes around the first and last words."""
    return text.strip().strip("*_#\"'“”‘’ \n")


def _starts(text: str, opening: str) -> bool:
    return _clean(text).lower().startswith(opening.lower())


def _ends(text: str, ending: str) -> bool:
    return _clean(text).rstrip(".!… ").lower().endswith(ending.lower().rstrip(".!… "))


def _mentions(text: str, phrases: Sequence[str], least: int = 1) -> bool:
    low = text.lower()
    return sum(bool(re.search(rf"(?<!\w){re.escape(p.lower())}", low)) for p in phrases) >= least


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isalpha())


def _alliterates(text: str) -> bool:
    """Every word has the same first letter."""
    return len(words(text)) > 2 and len({word[0].lower() for word in words(text)}) == 1


def _alphabetical(text: str) -> bool:
    low = [word.lower() for word in words(text)]
    return len(low) > 3 and low == sorted(low)


def _rhymes(text: str) -> bool:
    """Lines rhyme in pairs throughout."""
    ends = [found[-1].lower() for line in text.splitlines() if (found := words(line))]
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    return len(pairs) >= 2 and all(a != b and a[-2:] == b[-2:] for a, b in pairs)


CHECKS: dict[str, Callable[[str, Any], bool]] = {
    "max_words": lambda text, n: 0 < len(words(text)) <= n,
    "min_words": lambda text, n: len(words(text)) >= n,
    "exact_words": lambda text, n: len(words(text)) == n,
    "max_sentences": lambda text, n: 0 < sentences(text) <= n,
    "starts": _starts,
    "ends": _ends,
    "ends_question": lambda text, yes: _clean(text).endswith("?") == yes,
    "mentions": lambda text, phrases: _mentions(text, phrases),
    "mentions_two": lambda text, phrases: _mentions(text, phrases, 2),
    "avoids": lambda text, phrases: not _mentions(text, phrases),
    "bullets": lambda text, n: len(_BULLET.findall(text)) >= n,
    "numbered": lambda text, n: len(_NUMBERED.findall(text)) >= n,
    "list": lambda text, yes: (len(_BULLET.findall(text)) + len(_NUMBERED.findall(text)) >= 2) == yes,
    "upper": lambda text, yes: bool(_letters(text)) and (_letters(text).isupper() == yes),
    "lower": lambda text, yes: bool(_letters(text)) and (_letters(text).islower() == yes),
    "language": lambda text, name: language(text) == name,
    "exclamations": lambda text, n: text.count("!") >= n,
    "heading": lambda text, yes: bool(re.search(r"^\s*(?:#+ \S|\*\*[^*\n]+\*\*:?\s*$)", text, re.M)) == yes,
    "bold": lambda text, yes: bool(re.search(r"\*\*[^*\n]+\*\*", text)) == yes,
    "digits": lambda text, yes: any(c.isdigit() for c in text) == yes,
    "without_letter": lambda text, letter: bool(_letters(text)) and letter not in text.lower(),
    "alliterates": lambda text, yes: _alliterates(text) == yes,
    "alphabetical": lambda text, yes: _alphabetical(text) == yes,
    "rhymes": lambda text, yes: _rhymes(text) == yes,
    "repeats_end": lambda text, yes: (
        len(words(text)) > 2 and (words(text)[0].lower() == words(text)[-1].lower()) == yes
    ),
}


def has_wish(text: str, checks: Mapping[str, Any]) -> bool:
    """Whether the reply passes all of a wish's checks."""
    return all(CHECKS[name](text, value) for name, value in checks.items())


def on_topic(text: str, stems: Sequence[str]) -> bool:
    """Whether the reply mentions the topic of the request."""
    low = text.lower()
    return any(stem in low for stem in stems)


def is_degenerate(text: str) -> bool:
    """Whether the reply is almost empty, or repeats itself."""
    found = [word.lower() for word in words(text)]
    if len(found) < 3:
        return True
    return len(found) >= 12 and len(set(found)) < 0.4 * min(len(found), 60)
