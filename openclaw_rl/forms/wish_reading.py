"""Parses wishes from a user's words with tables (``wish_table.py``).

A sentence is parsed part by part. What a part asks for is a point: an aspect (length, language, formality,
emoji …) and its desired value (one sentence, French, casual, no …). Points determine how wishes relate to
each other (``wishes.py``). Text that the tables do not know has no points.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_rl.forms.wish_table import QUOTED, UNITS, Table, named, table_for
from openclaw_rl.text import sentences

_POLES = (
    *(("short", "long"), ("formal", "casual"), ("polite", "rude"), ("funny", "serious"), ("warm", "cold")),
    *(("excited", "calm"), ("simple", "technical"), ("upper", "lower"), ("yes", "no")),
)
_OPPOSITES = {**dict(_POLES), **{other: one for one, other in _POLES}}
_QUOTING = ("opening", "ending", "address", "voice")
_BOUNDS = ("most", "least", "exactly")
#: No one asks for more of these; without a "no" they are an interjection or about something else.
_ONLY_REFUSED = ("apology", "disclaimer", "smalltalk")
#: Number of unknown words with which a part without an instruction still counts as a wish.
_FEW, _FEW_WHERE_TOO_MUCH = 1, 3
#: A "not so" or "less" within this many words before an adjective belongs to it.
_BEFORE = 4
_KNOWN = ("filler", "lead", "want", "always", "no", "less", "back")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_PART = re.compile(r"(?:[,:–—，；：、]|(?<!\btl);)\s*|\s-\s", re.IGNORECASE)
_QUESTION = re.compile(r"[?？]\W*$")
#: An article and an adjective: the noun is still to come.
_OPEN_PHRASE = re.compile(r"\b(?:an?|the|eine?[nmrs]?|une?|una|uno|uma?|een)\s+\w+$", re.IGNORECASE)
#: What can be asked for in a few words behind something else.
_FORMS = frozenset(("length", "language", *_QUOTING))
_ENDS = (".", "!", "?", "…", "。", "！", "？")
_MOST_NAMED_WORDS = 8
#: Characters; the rest of a longer text is ignored.
_LONGEST = 1200


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of a sentence."""

    text: str
    points: Mapping[str, str]
    """Aspect -> desired value."""
    asks: bool = False
    """It is an instruction, or says that something is wanted."""
    is_wish: bool = False
    takes_back: bool = False
    """It says that something is no longer wanted: its points, if it has any."""
    takes_back_all: bool = False
    num_unknown: int = 0
    """Words in it that are in no table."""


def read_parts(text: str) -> tuple[Clause, ...]:
    """The parts of a text in order, including those that ask for nothing."""
    bare = text[:_LONGEST].replace("’", "'").strip()
    table = table_for(bare)
    return tuple(_read(part, table) for sentence in sentences(bare) for part in _split(sentence, table))


def split_wishes(sentence: str) -> list[str]:
    """A sentence in pieces, where each asks for something by itself: "one sentence and call me Captain"."""
    bare = sentence[:_LONGEST].replace("’", "'").strip()
    table = table_for(bare)
    pieces: list[str] = []
    for part in (_read(part, table) for part in _split(bare, table)):
        if not (part.is_wish and part.points):
            return [sentence]
        if pieces and not _stands_alone(part, pieces[-1], table):
            pieces[-1] = f"{pieces[-1]}, {part.text}"
        else:
            pieces.append(part.text)
    return [_as_sentence(piece, table) for piece in pieces] if len(pieces) > 1 else [sentence]


def _stands_alone(part: Clause, before: str, table: Table) -> bool:
    """It tells somebody to do something, or has a form of its own; not the second of two adjectives."""
    told = _Reader(part.text, table, part.takes_back).is_told
    return told or (bool(part.points.keys() & _FORMS) and not _OPEN_PHRASE.search(before))


def _as_sentence(piece: str, table: Table) -> str:
    """Without the "and" that joined it to the piece before: pieces are shown, and told to the model."""
    joined = table.forms["and"].match(f" {piece}")
    bare = piece[joined.end() - 1 :] if joined else piece
    return f"{bare[0].upper()}{bare[1:]}" + ("" if bare.endswith(_ENDS) else ".")


def opposite(value: str) -> str:
    if value in _OPPOSITES:
        return _OPPOSITES[value]
    return value.removeprefix("not ") if value.startswith("not ") else f"not {value}"


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# --- one sentence ------------------------------------------------------------------------------


def _split(sentence: str, table: Table) -> list[str]:
    """Split at commas and similar, and at an "and" with points on both sides."""
    parts: list[str] = []
    for piece in (piece for cut in _cut(sentence) for piece in _cut_at_and(cut, table)):
        if parts and _says_nothing(parts[-1], table):
            parts[-1] = f"{parts[-1]}, {piece}"
        else:
            parts.append(piece)
    return parts


def _cut(text: str) -> list[str]:
    """Split at punctuation, but never inside quotes."""
    quoted = [found.span() for found in QUOTED.finditer(text)]
    parts, start = [], 0
    for found in _PART.finditer(text):
        if not any(a < found.start() < b for a, b in quoted):
            parts.append(text[start : found.start()])
            start = found.end()
    return [part.strip() for part in (*parts, text[start:]) if part.strip(" .!?…。！？")]


def _cut_at_and(text: str, table: Table) -> list[str]:
    for found in table.forms["and"].finditer(text):
        left, right = text[: found.start()].strip(), text[found.end() :].strip()
        if left and right and _is_cut(left, right, table):
            return [left, *_cut_at_and(right, table)]
    return [text]


def _is_cut(left: str, right: str, table: Table) -> bool:
    """A "no" or "stop" also holds for what follows, unless that is an instruction of its own."""
    refuses = table.has("no", left) or table.has("back", left)
    if refuses and not _Reader(right, table, False).is_told:
        return False
    return bool(_read(left, table).points and _read(right, table).points)


def _says_nothing(part: str, table: Table) -> bool:
    """Whether it is only a lead-in, such as "Please" or "Hör auf"."""
    return not _left(part, set(), table) and not _read(part, table).points


# --- one part ----------------------------------------------------------------------------------


def _read(part: str, table: Table) -> Clause:
    taken = table.has("back", QUOTED.sub(lambda quoted: "·" * len(quoted.group()), part))
    reader = _Reader(part, table, taken)
    asks = reader.is_told or table.has("want", part)
    if _QUESTION.search(part) and not asks:
        return Clause(part, {})
    left = len(_left(part, reader.covered, table))
    is_short = left <= _FEW and not table.has("states", part)
    everything = table.has("all", part)
    is_wish = (
        (bool(reader.points) and (asks or is_short or (reader.is_too_much and left <= _FEW_WHERE_TOO_MUCH)))
        or everything
        or reader.is_about_manner
        or (taken and asks and left <= _FEW_WHERE_TOO_MUCH)
        or (table.has("always", part) and (reader.is_told or table.has("should", part)))
    )
    return Clause(part, reader.points, asks, is_wish, taken, everything, left)


def _left(part: str, covered: set[int], table: Table) -> list[str]:
    """Words that are in no table; in languages without spaces, two characters count as one word."""
    known = covered | table.covered(_KNOWN, part)
    if not table.is_spaced:
        return [sign for n, sign in enumerate(part) if n not in known and sign.isalnum()][::2]
    return [word.group() for word in _WORD.finditer(part) if _is_unknown(word, known)]


def _is_unknown(word: re.Match[str], known: set[int]) -> bool:
    """Whether at most half of it is known."""
    return 2 * len(known & set(range(*word.span()))) <= len(word.group())


class _Reader:
    """Parses one part; ``taken``: it says what is no longer wanted."""

    def __init__(self, part: str, table: Table, taken: bool) -> None:
        self._table, self._taken, self._rest = table, taken, part
        self.points: dict[str, str] = {}
        self.covered: set[int] = set()
        self.is_too_much = False
        start = self._begins(part)
        self.is_told = any(self._tells(part, at) for at in dict.fromkeys((start, 0)))
        manner = table.forms.get("manner")
        self.is_about_manner = manner is not None and manner.match(part, start) is not None
        # Neither a "No," before all else nor a "You did not" refuses what comes after it.
        self._rest = " " * start + part[start:]
        for found in table.forms["did_not"].finditer(self._rest):
            a, b = found.span()
            self._rest = self._rest[:a] + " " * (b - a) + self._rest[b:]
        self._read_named()
        self._read_count()
        self._read_language()
        self._read_axes()

    def _begins(self, part: str) -> int:
        """The position after lead words such as "No," and "please"."""
        leads = re.match(rf"\W*(?:(?:{self._table.forms['lead'].pattern})\W*)*", part, re.IGNORECASE)
        return leads.end() if leads else 0

    def _tells(self, part: str, at: int) -> bool:
        if found := self._table.forms["do"].match(part, at):
            self._cover(found.span())
        return found is not None

    def _take(self, found: re.Match[str], about: str, value: str) -> None:
        self.points.setdefault(about, value)
        self._cover(found.span())

    def _cover(self, span: tuple[int, int]) -> None:
        self.covered |= set(range(*span))

    def _is_refused(self, text: str) -> bool:
        return not self._taken and self._table.has("no", text)

    def _read_named(self) -> None:
        for about in _QUOTING:
            found = self._table.search(about, self._rest)
            if found is None and self.is_told:
                found = self._table.search(f"told_{about}", self._rest)
            words = self._words(about, named(found, "words") or found.group()) if found else ""
            if found is None or not words:
                continue
            refused = about != "voice" and self._is_refused(self._rest[: found.end() - len(words)])
            self._take(found, about, f"not {words}" if refused else words)
            # Masked: quoted words may be anything, and must not match other tables.
            a, b = found.span()
            self._rest = self._rest[:a] + "·" * (b - a) + self._rest[b:]

    def _words(self, about: str, said: str) -> str:
        if quoted := QUOTED.search(said):
            return " ".join(plain(quoted.group()).split()[:_MOST_NAMED_WORDS])
        if about == "ending" and self._table.has("question", said):
            return "question"
        around = ("want", "always", *(("filler", "back") if about == "voice" else ()))
        known = self._table.covered(around, said)
        words = "".join(" " if n in known else sign for n, sign in enumerate(said))
        return " ".join(plain(words).split()[:_MOST_NAMED_WORDS])

    def _read_count(self) -> None:
        found = self._table.count.search(self._rest)
        if found is None:
            return
        unit = next(unit for unit in UNITS if found.groupdict().get(unit))
        bound = next((name for name in _BOUNDS if self._table.has(name, self._rest)), "")
        self.covered |= self._table.covered(_BOUNDS, self._rest)
        number = f"{self._number(found['n'])} {unit}"
        self._take(found, "length", f"{bound} {number}" if bound in ("least", "exactly") else number)

    def _number(self, said: str) -> str:
        if said.isdigit():
            return said
        return next(number for number, form in self._table.numbers.items() if form.fullmatch(said))

    def _read_language(self) -> None:
        found = self._table.search("in_language", self._rest)
        if found is None:
            found = self._table.search("bare_language", self._rest)
            if found is None or _left(self._rest, set(range(*found.span())), self._table):
                return
        said = named(found, "language")
        name = next(name for name, form in self._table.languages.items() if form.fullmatch(said))
        self._take(found, "language", f"not {name}" if self._is_refused(self._rest) else name)

    def _read_axes(self) -> None:
        refused = self._is_refused(self._rest)
        for name, form in self._table.axes.items():
            axis, _, value = name.partition("_")
            for found in form.finditer(self._rest):
                if axis == "thing":
                    self._take_thing(found, value, refused)
                elif axis == "layout":
                    self._take_layout(found, opposite(value) if refused else value)
                else:
                    self._take(found, axis, self._pole(found, value))

    def _take_thing(self, found: re.Match[str], about: str, refused: bool) -> None:
        if about not in _ONLY_REFUSED or refused or self._taken:
            self._take(found, about, "no" if refused else "yes")

    def _take_layout(self, found: re.Match[str], value: str) -> None:
        """A more specific layout replaces "list": a numbered list is "numbered"."""
        if self.points.get("layout") in ("list", "not list"):
            del self.points["layout"]
        self._take(found, "layout", value)

    def _pole(self, found: re.Match[str], value: str) -> str:
        if value not in _OPPOSITES or self._taken or not self._is_reduced(found):
            return value
        self.is_too_much = self.is_too_much or self._table.has("too", self._rest)
        return _OPPOSITES[value]

    def _is_reduced(self, found: re.Match[str]) -> bool:
        """Whether less of it is wanted: "not so", "less" or "too" right before it."""
        before = self._rest[: found.start()]
        if self._table.has("less_after", self._rest[found.start() :]):
            return True
        words = list(_WORD.finditer(before))[-_BEFORE:]
        if self._table.is_spaced:
            before = before[words[0].start() :] if words else ""
        return self._table.has("less", before) or self._table.has("no", before)
