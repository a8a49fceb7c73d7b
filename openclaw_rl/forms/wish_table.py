"""The tables for parsing wishes, one file per language in ``wish_words``.

Sections of a table:

- ``lead``: lead-in words; ``filler``: words that ask for nothing; ``and``: where to split
- ``do``: how an instruction begins; ``manner``: the same, for instructions about replies
- ``want``, ``should``: something is wanted; ``always``: permanently; ``states``: it is a statement
- ``back``: no longer wanted; ``all``: everything as before
- ``no``: negation; ``less``, ``less_after``, ``too``: less of it is wanted
- ``opening``, ``ending``, ``address``, ``voice``, with the ``words`` to use; ``told_…``: only in instructions
- numbers, units (``sentence`` …), bounds (``most`` …), languages
- all others are ``aspect_value``, such as ``length_short``; a ``thing_…`` is wanted or not
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from openclaw_rl.patterns import read_patterns
from openclaw_rl.text import by_script

LANGUAGES = (
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "polish"),
    *("russian", "chinese", "japanese"),
)
#: Languages without spaces between words.
UNSPACED = ("chinese", "japanese")
UNITS = ("sentence", "word", "line", "paragraph", "points")
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|„[^“”]*[“”]|「[^」]*」|‘[^’]*’|(?<!\w)'[^']+'(?!\w)")
_AXES = (
    *("length", "formality", "manners", "humour", "warmth", "energy", "difficulty", "letters", "layout"),
    *("units", "temperature", "distance", "spelling", "thing"),
)
#: Between two numbers, of which the larger counts: "one or two sentences".
_RANGE = r"(?:or|to|oder|bis|ou|à|o|a|of|tot|lub|albo|do|или|до)\b|[-–]"
_GROUP = re.compile(r"\(\?P<(\w+)>")


@dataclass(frozen=True)
class Table:
    language: str
    forms: Mapping[str, re.Pattern[str]]
    axes: Mapping[str, re.Pattern[str]]
    """``aspect_value`` -> its words."""
    languages: Mapping[str, re.Pattern[str]]
    numbers: Mapping[str, re.Pattern[str]]
    count: re.Pattern[str]
    """A number and its unit."""

    @property
    def is_spaced(self) -> bool:
        return self.language not in UNSPACED

    def search(self, name: str, text: str) -> re.Match[str] | None:
        form = self.forms.get(name)
        return form.search(text) if form else None

    def has(self, name: str, text: str) -> bool:
        return self.search(name, text) is not None

    def covered(self, names: Iterator[str] | tuple[str, ...], text: str) -> set[int]:
        """The character positions in the text that these sections match."""
        forms = (self.forms[name] for name in names if name in self.forms)
        return {n for form in forms for found in form.finditer(text) for n in range(*found.span())}


@cache
def table_of(language: str) -> Table:
    sections = read_patterns(f"wish_words/{language}", "openclaw_rl.forms")
    numbers, names = _keyed(sections.pop("numbers")), _keyed(sections.pop("languages"))
    known, spaced = "|".join(names.values()), language not in UNSPACED
    forms = {
        name: _compiled([line.replace("{LANGUAGE}", f"(?:{known})") for line in lines])
        for name, lines in sections.items()
    }
    forms["bare_language"] = _compiled([f"(?P<language>{known})"])
    if spaced:
        forms["lead"] = re.compile(rf"(?<!\w)(?:{forms['lead'].pattern})(?!\w)", re.IGNORECASE)
    begins = r"(?<!\w)" if spaced else ""
    for name in [name for name in forms if name.partition("_")[0] in _AXES]:
        forms[name] = re.compile(rf"{begins}(?:{forms[name].pattern})", re.IGNORECASE)
    return Table(
        language,
        forms,
        {name: form for name, form in forms.items() if name.partition("_")[0] in _AXES},
        {name: _compiled([form]) for name, form in names.items()},
        {number: _compiled([form]) for number, form in numbers.items()},
        _count_form(sections, numbers, spaced),
    )


def table_for(text: str) -> Table:
    """The table of the script's language, else the one that covers most of the text."""
    bare = QUOTED.sub(" ", text)
    if (language := by_script(bare)) is not None:
        return table_of(language)
    tables = [table_of(language) for language in LANGUAGES if language not in ("russian", *UNSPACED)]
    return max(tables, key=lambda table: len(table.covered(iter(table.forms), bare)))


def named(found: re.Match[str], name: str) -> str:
    """The text of a named group; several lines of a section may have a group of this name."""
    groups = found.groupdict().items()
    return next((said for key, said in groups if said and key.rstrip("0123456789") == name), "")


def _count_form(
    sections: Mapping[str, list[str]], numbers: Mapping[str, str], spaced: bool
) -> re.Pattern[str]:
    number = "|".join([r"\d{1,3}", *sorted("|".join(numbers.values()).split("|"), key=len, reverse=True)])
    units = "|".join(f"(?P<{unit}>{'|'.join(sections[unit])})" for unit in UNITS if unit in sections)
    between = "|".join(sections["between"])
    if spaced:
        first = rf"(?:(?:{number})\s?(?:{_RANGE})\s?)?"
        return re.compile(rf"\b{first}(?P<n>{number})[ -](?:(?:{between})[, ]+)*(?:{units})\b", re.IGNORECASE)
    return re.compile(rf"(?P<n>{number})(?:{between})*(?:{units})", re.IGNORECASE)


def _keyed(lines: list[str]) -> dict[str, str]:
    return {key: form for key, _, form in (line.partition(": ") for line in lines)}


def _compiled(lines: list[str]) -> re.Pattern[str]:
    """Group names get the number of their line as a suffix, since names must be unique."""
    numbered = [_GROUP.sub(rf"(?P<\g<1>{n}>", line) for n, line in enumerate(lines)]
    return re.compile("|".join(f"(?:{line})" for line in numbered), re.IGNORECASE)
