"""Forms from the points of a wish (``wish_reading.py``): in any language, and also where no number is named.

"Be brief", "Kürzer bitte" and "Keep it to a line or two" all want ``length: short``. A point for which there
is no form here ("formal", "simple words") is left to the hinted base.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from openclaw_rl.forms.shapes import (
    LANGUAGES,
    Form,
    addressed,
    as_list,
    asking,
    brief,
    ending,
    exact_words,
    exclaimed,
    in_language,
    in_paragraphs,
    in_sentences,
    in_words,
    letters,
    not_opening,
    opening,
    prose,
    quoted,
    unapologetic,
    unexcited,
    with_emoji,
    without,
)
from openclaw_rl.forms.wish_reading import Clause, opposite
from openclaw_rl.forms.wish_table import QUOTED, table_for

_COUNT = re.compile(r"(?:(?P<bound>exactly) )?(?P<n>\d+) (?P<unit>sentence|word|paragraph)")
_POINTS = re.compile(r"(?:exactly )?(?P<n>\d+) points")
#: Lists of more points than this would need more sentences than most replies have.
_MOST_POINTS = 5

_MADE: Mapping[tuple[str, str], Callable[[], Form]] = {
    ("length", "short"): brief,
    ("layout", "numbered"): lambda: as_list("1."),
    ("layout", "steps"): lambda: as_list("1."),
    ("layout", "bullets"): lambda: as_list("-"),
    ("layout", "list"): lambda: as_list("-"),
    **{("layout", value): prose for value in ("prose", "not list", "not bullets", "not numbered")},
    ("letters", "upper"): lambda: letters(True),
    ("letters", "lower"): lambda: letters(False),
    ("emoji", "yes"): with_emoji,
    ("exclamation", "yes"): exclaimed,
    ("exclamation", "no"): unexcited,
    ("quotes", "yes"): quoted,
    ("apology", "no"): unapologetic,
    **{(thing, "no"): partial(without, thing) for thing in ("emoji", "bold", "markdown", "comma")},
}


def forms_of(part: Clause) -> list[Form] | None:
    """The forms that meet all points of a part; None if one of them has none."""
    # "Stop using lists" from somebody who never wished for them.
    points = {about: opposite(value) if part.takes_back else value for about, value in part.points.items()}
    listed = _POINTS.fullmatch(points.get("length", ""))
    if listed and points.get("layout", "bullets") in ("bullets", "numbered", "list", "steps"):
        mark = "1." if points.pop("layout", "") in ("numbered", "steps") else "-"
        del points["length"]
        if not 2 <= int(listed["n"]) <= _MOST_POINTS:
            return None
        return _all(
            [as_list(mark, int(listed["n"])), *(_form(*point, part.text) for point in points.items())]
        )
    return _all([_form(*point, part.text) for point in points.items()])


def _all(forms: list[Form | None]) -> list[Form] | None:
    found = [form for form in forms if form is not None]
    return found if len(found) == len(forms) else None


def _form(about: str, value: str, said: str) -> Form | None:
    if made := _MADE.get((about, value)):
        return made()
    if about == "length" and (count := _COUNT.fullmatch(value)):
        return _counted(count["unit"], int(count["n"]), count["bound"] is not None)
    if about == "language":
        return in_language(value) if value in LANGUAGES else None
    if about == "ending" and value == "question":
        return asking()
    return _named(about, value, said)


def _counted(unit: str, number: int, exactly: bool) -> Form | None:
    if not number:
        return None
    if unit == "word":
        return exact_words(number) if exactly else in_words(number)
    if unit == "paragraph":
        return in_paragraphs(number)
    return in_sentences(number, most=not exactly, short=False)


def _named(about: str, value: str, said: str) -> Form | None:
    refused = value.startswith("not ")
    words = as_said(value.removeprefix("not "), said)
    if about == "address":
        return None if refused or not words else addressed(words)
    if not words or not _is_literal(words, said):
        return None
    if about == "opening":
        return not_opening(words) if refused else opening(words)
    return ending(words) if about == "ending" and not refused else None


def _is_literal(words: str, said: str) -> bool:
    """Whether the words themselves are meant: in quotes, or with a capital letter that says something."""
    if any(words in mark.group() for mark in QUOTED.finditer(said)):
        return True
    return words[0].isupper() and table_for(said).language != "german"


def as_said(words: str, said: str) -> str:
    """Words in lower case, as they stand in a text, with capitals and the signs between them."""
    pattern = r"\W+".join(map(re.escape, words.split()))
    found = re.search(rf"(?<!\w){pattern}(?!\w)[!?.…]?", said, re.IGNORECASE)
    return found.group().rstrip(".") if found else ""
