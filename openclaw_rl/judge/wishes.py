"""How what somebody wishes for now stands to what they wished for before, from their words alone.

A wish is about one thing: the language, the length, how a reply begins … Two about the same thing are
the same wish if they share their words; otherwise the later one takes the earlier one's place. "You can
stop with the lists" takes a wish back.
"""

from __future__ import annotations

import re
from typing import Literal

from openclaw_rl.judge.corrections import is_failure_in_words, is_personal
from openclaw_rl.judge.hints import contradict

Relation = Literal["same", "replaces", "takes back", "other"]

_WORD = re.compile(r"[^\W\d_]{3,}|\d+")
_LANGUAGES = (
    "english|french|spanish|german|italian|portuguese|dutch|russian|chinese|japanese|latin|polish|swedish|"
    "turkish|greek|arabic|hindi|korean"
)
#: What a wish can be about; more than one may hold.
_ABOUT = {
    "language": re.compile(rf"\b(?:{_LANGUAGES})\b", re.I),
    "opening": re.compile(r"\b(?:begin\w*|start\w*|open\w*)\b.{0,30}\bwith\b|\bfirst words?\b", re.I),
    "ending": re.compile(
        r"\b(?:end\w*|finish\w*|clos\w+)\b.{0,30}\bwith\b|\bat the end\b|\blast words?\b", re.I
    ),
    "length": re.compile(
        r"\b(?:short\w*|brief\w*|concise\w*|(?:too|so|very) long|long(?:er)? (?:answers?|replies|reply)|"
        r"longer|details?|detailed|lengthy|words?|sentences?|paragraphs?)\b",
        re.I,
    ),
    "letters": re.compile(r"\b(?:lower ?case|upper ?case|capital|capitals|caps)\b", re.I),
    "layout": re.compile(
        r"\b(?:lists?|bullets?|bullet points?|numbered|tables?|prose|plain sentences)\b", re.I
    ),
    "voice": re.compile(r"\b(?:talk|speak|sound|answer|write|say it|act|reply)\w*\b.{0,12}\blike\b", re.I),
}
#: Openings and endings hold words that may mean anything.
_QUOTING = ("opening", "ending")
_QUOTED = re.compile(r"\bwith\b(?: the)?(?: words?| phrase)?\W*(?P<words>.+?)\W*$", re.I)
_TAKES_BACK = re.compile(
    r"\b(?:stop|no longer|any ?more|(?:don't|do not|needn't) (?:have to|need)|no need|leave out|drop the|"
    r"forget (?:about )?(?:the|that|what)|no more|enough of|never mind|without the|as (?:you did )?before|"
    r"(?:back to )?normal(?:ly)?|the way you used to|nicht mehr|plus besoin)\b",
    re.I,
)
_ALL = re.compile(r"\b(?:normal(?:ly)?|as (?:you did )?before|the way you used to|forget what)\b", re.I)
_COMMON_WORDS = """
please answer answers answering reply replies every always with the your you that this and for not
but from into like want need would should could will can give use using say said write make more
less just only again now still all any are was were have has had too very them they what when how
begin beginning start starting end ending finish talk speak sound letters everything word words sure
"""
_COMMON = frozenset(_COMMON_WORDS.split())


#: Says how replies shall be, rather than what was wrong with one.
_ASKS_FOR = re.compile(
    r"\bplease\b|^(?:no,? |and |now |just |always |also )?(?:answer|use|say|give|explain|begin|start|keep|"
    r"make|write|tell|show|speak|talk|put|list|add|be|do|don't|do not|never|always|end|finish|call|ask|name|"
    r"compare|avoid|stop)\b|\bi(?:'d| would)? (?:want|need|like|prefer|wish|asked for|said)\b|"
    r"\byou (?:forgot|did not|didn't|should|must)\b|"
    r"\b(?:must|should|no more|from now on|next time)\b",
    re.IGNORECASE,
)
_REMARKS = re.compile(
    r"\bnot (?:about )?what i (?:asked|meant|wanted)\b|\b(?:did not|didn't|doesn't|does not) answer\b|"
    r"^(?:that|this|it)(?:'s| is| was) (?:not )?(?:wrong|bad|right|true|correct|helpful|nonsense)\b",
    re.IGNORECASE,
)


def is_wish(text: str) -> bool:
    """Whether a hint says how replies shall be from now on; others are about one reply alone."""
    if _REMARKS.search(text) or is_personal(text) or is_failure_in_words(text):
        return False
    return bool(_ASKS_FOR.search(text) or _about(text) or _TAKES_BACK.search(text))


def relation(new: str, old: str) -> Relation:
    """What a wish does to an earlier one of the same person."""
    shared, smaller = stems(new) & stems(old), min(len(stems(new)), len(stems(old)))
    if _TAKES_BACK.search(new) and (shared or _ALL.search(new)) and not _TAKES_BACK.search(old):
        return "takes back"
    alike = bool(smaller) and len(shared) / smaller >= 0.5
    about = _about(new) & _about(old)
    if _plain(new) == _plain(old) or (about & set(_QUOTING) and _quoted(new) == _quoted(old) != ""):
        return "same"
    if alike and not contradict(new, old):
        return "same"
    if about or (contradict(new, old) and shared):
        return "replaces"
    return "other"


def is_only_taking_back(new: str, old: str) -> bool:
    """Whether nothing is wished for beyond that: every word of weight is the old wish's, or a cue's."""
    rest = stems(_TAKES_BACK.sub(" ", new)) - stems(old)
    return len(rest) < 2 and not (_about(_TAKES_BACK.sub(" ", new)) - _about(old))


def stems(text: str) -> frozenset[str]:
    """Beginnings of the words that carry the meaning."""
    words = [word.lower() for word in _WORD.findall(text)]
    return frozenset((word.rstrip("s") or word)[:5] for word in words if word not in _COMMON)


def _quoted(text: str) -> str:
    """What a reply shall begin or end with; common words, too."""
    found = _QUOTED.search(text)
    return _plain(found["words"]) if found else ""


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _about(text: str) -> frozenset[str]:
    found = {name for name, pattern in _ABOUT.items() if pattern.search(text)}
    quoting = found & set(_QUOTING)
    return frozenset(quoting or found)
