"""Decides what is a wish, and how it relates to the user's earlier wishes, from their words alone.

A wish is about one or more aspects: the language, the length, how a reply begins … (``wish_reading.py``).
Two wishes about the same aspect are the same if they want the same value; otherwise the later one replaces
the earlier one. "You can stop with the lists" takes a wish back. If the tables do not know a wish, shared
words decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from openclaw_rl.forms import read
from openclaw_rl.forms.wish_reading import Clause, opposite, plain, read_parts, split_wishes
from openclaw_rl.judge.corrections import is_failure_in_words, is_personal

Relation = Literal["same", "replaces", "takes back", "other"]

_WORD = re.compile(r"[^\W\d_]{3,}|\d+")
_COMMON_WORDS = """
please answer answers answering reply replies every always with the your you that this and for not
but from into like want need would should could will can give use using say said write make more
less just only again now still all any are was were have has had too very them they what when how
begin beginning start starting end ending finish talk speak sound letters everything word words sure
don stop add never without must there
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_NOT = re.compile(r"\b(?:no|not|never|without|avoid|don't|do not|stop)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_LETTERS = re.compile(r"[^\W\d_]{3}|[^\W\d_\x00-\u024f]")
#: Value -> more specific values, which also satisfy it.
_EXACTER = {
    "list": ("numbered", "bullets", "steps"),
    "not list": ("prose", "not numbered", "not bullets"),
    "prose": ("not list", "not numbered", "not bullets"),
    "steps": ("numbered",),
    "numbered": ("steps",),
}
_REMARKS = re.compile(
    r"\bnot (?:about )?what i (?:asked|meant|wanted)\b|\b(?:did not|didn't|doesn't|does not) answer\b|"
    r"^(?:that|this|it)(?:'s| is| was) (?:not )?(?:wrong|bad|right|true|correct|helpful|nonsense)\b",
    re.IGNORECASE,
)


def is_wish(text: str) -> bool:
    """Whether a hint says how replies should be from now on; other hints are about one reply only."""
    if _REMARKS.search(text) or is_personal(text) or is_failure_in_words(text):
        return False
    return any(part.is_wish for part in read_parts(text)) or read([text]).whole


def asks(text: str) -> bool:
    """Whether the text asks for anything at all."""
    return any(part.asks for part in read_parts(text))


def separate(said: Sequence[str]) -> list[str]:
    """Sentences of one complaint, in order: each wish by itself, and all that is none together.

    Where there is no wish, they belong together: "It is in src. Use that one."
    """
    hints: list[str] = []
    rest, before = -1, ""
    for sentence in said:
        if not _LETTERS.search(sentence):  # "No.", "2."
            if hints:
                hints[-1] = f"{hints[-1]} {sentence}"
            else:
                before = f"{before}{sentence} "
            continue
        pieces = _pieces(sentence) if is_wish(sentence) else []
        pieces, before = [before + piece for piece in pieces[:1]] + pieces[1:], "" if pieces else before
        for piece in pieces:
            known = [n for n, hint in enumerate(hints) if n != rest and _is_about_the_same(piece, hint)]
            _put(hints, known[0] if known else -1, piece)
        if not pieces:
            rest, before = _put(hints, rest, before + sentence), ""
    return hints or [before.strip()] * bool(before)


def _put(hints: list[str], at: int, piece: str) -> int:
    """Add a piece to the hint at a place, or behind all (-1); where it is then."""
    if at < 0:
        hints.append(piece)
        return len(hints) - 1
    hints[at] = f"{hints[at]} {piece}"
    return at


def _pieces(sentence: str) -> list[str]:
    pieces = split_wishes(sentence)
    again = any(_is_about_the_same(new, old) for n, new in enumerate(pieces) for old in pieces[:n])
    return [sentence] if again else pieces


def _is_about_the_same(new: str, old: str) -> bool:
    return relation(new, old) in ("same", "replaces")


def relation(new: str, old: str) -> Relation:
    """How a new wish relates to an earlier one of the same user."""
    if plain(new) == plain(old):
        return "same"
    new_parts, old_parts = read_parts(new), read_parts(old)
    if any(_takes_back(part, old_parts, old) for part in new_parts):
        return "takes back"
    wanted, before = _points(new_parts, new), _points(old_parts, old)
    if wanted and before:
        return _compare(wanted, before)
    return _by_words(new, old)


def is_only_taking_back(new: str, old: str) -> bool:
    """Whether the new text only takes the old wish back and wishes for nothing else."""
    old_parts = read_parts(old)
    others = [part for part in read_parts(new) if part.is_wish and not _takes_back(part, old_parts, old)]
    return all(part.takes_back and not part.points for part in others)


def stems(text: str) -> frozenset[str]:
    """The first five letters of each content word."""
    words = [word.lower() for word in _WORD.findall(text)]
    return frozenset((word.rstrip("s") or word)[:5] for word in words if word not in _COMMON)


def _takes_back(part: Clause, old_parts: Sequence[Clause], old: str) -> bool:
    if any(each.takes_back or each.takes_back_all for each in old_parts):
        return False
    if part.takes_back_all:
        return True
    if not part.takes_back:
        return False
    before = _points(old_parts, old)
    if not part.points:
        return bool(stems(part.text) & stems(old))
    return any(
        about in before and _agrees(about, value, before[about]) for about, value in part.points.items()
    )


def _points(parts: Sequence[Clause], text: str) -> dict[str, str]:
    """All points of a text; for what is no longer wanted, the opposite value."""
    found: dict[str, str] = {}
    for part in [part for part in parts if part.is_wish] or parts:
        for about, value in part.points.items():
            found[about] = opposite(value) if part.takes_back else value
    for form in read([text]).forms:
        found.setdefault("exclamation" if form.name == "marks" else form.name, form.wanted)
    return found


def _compare(new: dict[str, str], old: dict[str, str]) -> Relation:
    shared = new.keys() & old.keys()
    if not shared:
        return "other"
    if any(not _agrees(about, new[about], old[about]) for about in shared):
        return "replaces"
    if new.keys() <= old.keys() and not any(_is_exacter(new[about], old[about]) for about in shared):
        return "same"
    return "replaces" if old.keys() <= new.keys() else "other"


def _agrees(about: str, one: str, other: str) -> bool:
    """Whether both values may be meant by the same wish."""
    if about == "voice":
        return bool(stems(one) & stems(other))
    return one == other or _is_exacter(one, other) or _is_exacter(other, one)


def _is_exacter(one: str, than: str) -> bool:
    if than == "short" and _NUMBER.search(one) and not one.startswith("least"):
        return True
    return (than == "long" and one.startswith("least")) or one in _EXACTER.get(than, ())


def _by_words(new: str, old: str) -> Relation:
    """The same if one has all the words of the other; in its place, if most are shared and some are not."""
    mine, theirs = sorted((stems(new), stems(old)), key=len)
    if not mine or 2 * len(mine & theirs) < (len(mine) if mine <= theirs else len(theirs)):
        return "other"
    same = bool(_NOT.search(new)) == bool(_NOT.search(old)) and _names(new) == _names(old)
    return "same" if same and mine <= theirs else "replaces"


def _names(text: str) -> set[str]:
    """Numbers, and words with a capital letter inside a sentence."""
    return {*_NUMBER.findall(text), *(word.lower() for word in re.findall(r"(?<=[\w,] )[A-Z]\w+", text))}
