"""Forms of replies: how to check a reply for each, and how to make it meet one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)]*(?=\s|$)")
#: After these a full stop does not end a sentence.
_ABBREVIATED = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|vs|etc|e\.g|i\.e|approx|No)|\b[A-Z]|^\s*\d{1,2})\.$")
_BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+\S", re.MULTILINE)
_MARK = re.compile(r"^\s*(?:(?:[-*•#]+|\d{1,2}[.)])\s+)+")
_LISTED = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+\S", re.MULTILINE)
_FEWEST_POINTS, _MOST_POINTS = 2, 5
_SHORT_WORDS = 20
_BRIEF_SENTENCES, _BRIEF_WORDS = 2, 30
_EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]\ufe0f?")
_SMILE = "😊"
_SORRY = re.compile(r"\b(?:sorry|apologi[sz]e|apolog(?:y|ies))\b", re.IGNORECASE)
#: What to find, and what to put in its place.
_REMOVED = {
    "emoji": (re.compile(rf" ?{_EMOJI.pattern}"), ""),
    "bold": (re.compile(r"\*\*|__|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)"), ""),
    "markdown": (re.compile(r"\*\*|__|`+|^\s*#+\s+|^\s*[-*•]\s+", re.MULTILINE), ""),
    "comma": (re.compile(r","), ""),
}
_LISTS = {"1.": "numbered", "-": "bullets"}


_ENGLISH = "the of and to in is that it for as with are on be by this which or from an was they their"
LANGUAGES = {
    "french": "le la les des est une dans pour que qui sur avec par sont du et il elle ce au aux ou un plus",
    "spanish": "el la los las es una en para que por con del se son y como su lo al un o más",
    "german": "der die das ist und ein eine in zu von mit den für auf sie es nicht auch im wird "
    "oder sind dem",
    "italian": "il lo la gli è una di che per con del sono nel e un della le in come si i più",
    "portuguese": "o a os as é uma em para que por com do da são e um no na se como dos mais",
    "dutch": "de het een en van in is dat op te zijn voor met die door aan of ook er worden",
    "polish": "i w na z do jest to się nie że są jak przez dla oraz które który po od o",
    "swedish": "och i att det som en på är av för med den till inte om ett har de från kan",
}
#: First words that become lower case when other words are put before them.
_ORDINARY = """
The A An It It's They There This That These Those In On At As When While For From With To Its Their He She We
You Your If By One Some Many Most All
"""
_ORDINARY_FIRST = frozenset(_ORDINARY.split())


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    meets: Callable[[str], bool]
    make: Callable[[str], str] | None = None
    """Changes a reply to meet the form, if that is possible."""
    selects: bool = False
    """Whether only some kinds of replies can be changed to meet it."""
    cuts: bool = False
    """Made by leaving out the end, and nothing else."""
    wanted: str = ""
    """What exactly: two forms of one name and different wants exclude each other."""


def sentences(text: str) -> list[str]:
    """The complete sentences of a text."""
    found, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATED.search(text[start : end.end()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in found if sentence]


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def in_sentences(number: int, most: bool, short: bool) -> Form:
    longest = _SHORT_WORDS * number if short else 10**6

    def meets(reply: str) -> bool:
        found = sentences(reply)
        whole = reply.strip().endswith(found[-1]) if found else False
        return (
            whole
            and (len(found) <= number if most else len(found) == number)
            and count_words(reply) <= longest
        )

    return Form(
        "length",
        meets,
        lambda reply: " ".join(_unlisted(reply)[:number]),
        cuts=True,
        wanted=f"{number} sentence",
    )


def in_words(number: int) -> Form:
    def make(reply: str) -> str:
        kept: list[str] = []
        for sentence in _unlisted(reply):
            if count_words(" ".join([*kept, sentence])) > number:
                break
            kept.append(sentence)
        return " ".join(kept)

    return Form("length", lambda reply: 0 < count_words(reply) <= number, make, True, wanted=f"{number} word")


def exact_words(number: int) -> Form:
    return Form("length", lambda reply: count_words(reply) == number, wanted=f"exactly {number} word")


def brief() -> Form:
    """For those who want less text and name no number."""

    def meets(reply: str) -> bool:
        return in_sentences(_BRIEF_SENTENCES, most=True, short=False).meets(reply) and (
            count_words(reply) <= _BRIEF_WORDS
        )

    def make(reply: str) -> str:
        said = _unlisted(reply)[:_BRIEF_SENTENCES]
        return " ".join(said if count_words(" ".join(said)) <= _BRIEF_WORDS else said[:1])

    return Form("length", meets, make, cuts=True, wanted="short")


def in_paragraphs(number: int) -> Form:
    def meets(reply: str) -> bool:
        return len([block for block in re.split(r"\n\s*\n", reply.strip()) if block.strip()]) == number and (
            number > 1 or not _LISTED.search(reply)
        )

    def make(reply: str) -> str:
        said = _unlisted(reply)
        cuts = [round(n * len(said) / number) for n in range(number + 1)]
        return "\n\n".join(" ".join(said[a:b]) for a, b in pairwise(cuts) if a < b)

    return Form("length", meets, make, wanted=f"{number} paragraph")


def as_list(mark: str, number: int = 0) -> Form:
    """A list of so many points, or of at least two."""
    pattern = _NUMBERED if mark == "1." else _BULLET

    def meets(reply: str) -> bool:
        found = len(pattern.findall(reply))
        return found == number if number else found >= _FEWEST_POINTS

    def make(reply: str) -> str:
        points = _unlisted(reply)[: number or _MOST_POINTS]
        signs = [f"{n}." if mark == "1." else mark for n in range(1, len(points) + 1)]
        return "\n".join(f"{sign} {point}" for sign, point in zip(signs, points, strict=True))

    return Form("layout", meets, make, wanted=f"{number or ''} {_LISTS[mark]}".strip())


def prose() -> Form:
    """No list."""
    return Form(
        "layout",
        lambda reply: not _LISTED.search(reply),
        lambda reply: " ".join(_unlisted(reply)),
        wanted="prose",
    )


def addressed(name: str) -> Form:
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)

    def make(reply: str) -> str:
        first = (sentences(reply) or [""])[0]
        at = reply.find(first) + len(first.rstrip(".!?…\"'”’)"))
        return f"{reply[:at]}, {name}{reply[at:]}" if first else ""

    return Form("address", lambda reply: bool(pattern.search(reply)), make, wanted=" ".join(_plain(name)))


def exclaimed() -> Form:
    def make(reply: str) -> str:
        return " ".join(re.sub(r"\.$", "!", sentence) for sentence in sentences(reply))

    return Form(
        "marks", lambda reply: reply.count("!") >= 2 or reply.rstrip().endswith("!"), make, wanted="yes"
    )


def unexcited() -> Form:
    return Form("marks", lambda reply: "!" not in reply, lambda reply: re.sub(r"!+", ".", reply), wanted="no")


def unapologetic() -> Form:
    def make(reply: str) -> str:
        return " ".join(sentence for sentence in sentences(reply) if not _SORRY.search(sentence))

    return Form("apology", lambda reply: not _SORRY.search(reply), make, wanted="no")


def quoted() -> Form:
    def meets(reply: str) -> bool:
        bare = reply.strip()
        return len(bare) > 2 and bare[0] in '"“' and bare[-1] in '"”'

    def make(reply: str) -> str:
        body = _complete(reply).replace('"', "'")
        return f'"{body}"' if body else ""

    return Form("quotes", meets, make, wanted="yes")


def with_emoji() -> Form:
    """One after the first sentence, where it is seen however long a reply is."""

    def make(reply: str) -> str:
        first = (sentences(reply) or [""])[0]
        at = reply.find(first) + len(first)
        return f"{reply[:at]} {_SMILE}{reply[at:]}" if first else ""

    return Form("emoji", lambda reply: bool(_EMOJI.search(reply)), make, wanted="yes")


def without(thing: str) -> Form:
    """``thing``: emoji, bold, markdown or comma."""
    pattern, by = _REMOVED[thing]
    return Form(
        thing,
        lambda reply: not pattern.search(reply),
        lambda reply: pattern.sub(by, reply).strip(),
        wanted="no",
    )


def not_opening(said: str) -> Form:
    refused = _plain(said)
    words = r"\W+".join(map(re.escape, refused))
    pattern = re.compile(rf"\W*{words}\b\W*", re.IGNORECASE)

    def make(reply: str) -> str:
        rest = pattern.sub("", reply, count=1)
        return rest[:1].upper() + rest[1:]

    return Form(
        "opening",
        lambda reply: _plain(reply)[: len(refused)] != refused,
        make,
        wanted=f"not {' '.join(refused)}",
    )


def opening(said: str) -> Form:
    wanted = _plain(said)

    def make(reply: str) -> str:
        first, _, rest = reply.strip().partition(" ")
        if said[-1] in ".!?:,…":
            return f"{said} {first} {rest}".rstrip()
        # A comma: after a full stop the model would start its reply over, opening included.
        small = first in _ORDINARY_FIRST or re.search(rf"\b{re.escape(first.lower())}\b", rest)
        return f"{said}, {first[:1].lower() + first[1:] if small else first} {rest}".rstrip()

    return Form(
        "opening", lambda reply: _plain(reply)[: len(wanted)] == wanted, make, wanted=" ".join(wanted)
    )


def ending(said: str) -> Form:
    wanted = _plain(said)

    def make(reply: str) -> str:
        body = _complete(reply)
        return f"{body} {said}{'' if said[-1] in '.!?…' else '.'}" if body else ""

    return Form(
        "ending", lambda reply: _plain(reply)[-len(wanted) :] == wanted, make, wanted=" ".join(wanted)
    )


def asking() -> Form:
    return Form("ending", lambda reply: reply.strip().rstrip("\"'”’)*_ ").endswith("?"), wanted="question")


def letters(upper: bool) -> Form:
    def meets(reply: str) -> bool:
        letters = "".join(c for c in reply if c.isalpha())
        return bool(letters) and (letters.isupper() if upper else letters.islower())

    return Form("letters", meets, str.upper if upper else str.lower, wanted="upper" if upper else "lower")


def in_language(name: str) -> Form:
    own = frozenset(LANGUAGES[name].split())
    english = frozenset(_ENGLISH.split())

    def meets(reply: str) -> bool:
        said = [word.lower() for word in _WORD.findall(reply)]
        return sum(word in own for word in said) > max(1, 2 * sum(word in english - own for word in said))

    return Form("language", meets, wanted=name)


def _plain(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _complete(reply: str) -> str:
    """The reply up to the end of its last complete sentence."""
    found = sentences(reply)
    return reply[: reply.rfind(found[-1]) + len(found[-1])].strip() if found else ""


def _unlisted(reply: str) -> list[str]:
    """The reply's sentences, without list or heading marks."""
    found = [sentence for line in reply.splitlines() for sentence in sentences(_MARK.sub("", line))]
    return [_MARK.sub("", sentence) for sentence in found]
