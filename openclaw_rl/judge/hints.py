"""Hints: how the reply should have differed, in the user's words.

``verbatim_hints`` extracts them from a case without a model. ``filter_hints`` removes hints that are trivial,
contradictory, unsafe or no correction, whatever their source. A tool's text never becomes a hint; for its
errors, a fixed sentence says that the call failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.judge import languages
from openclaw_rl.judge.corrections import corrects, failure_in_words
from openclaw_rl.judge.cues import cue_table
from openclaw_rl.judge.exchange import CaseTexts, own_words
from openclaw_rl.judge.guard import neutralise
from openclaw_rl.judge.tool_errors import error_in
from openclaw_rl.judge.wishes import is_wish, separate
from openclaw_rl.patterns import read_patterns
from openclaw_rl.text import sentences
from openclaw_rl.types import JudgeCase

MAX_HINTS = 3
_MAX_CHARS = 400
_MIN_GROUNDED = 0.4
_WORD = re.compile(r"[^\W_]{2,}")
_CORRECTS = ("wrong", "change", "said", "contrast")
_EMPTY_WORDS = frozenset(
    word
    for line in (
        "ok okay no nope yes wrong bad good hmm meh ugh thanks thank you please lol sorry what why well",
        "so the is it that this and not again try true false fix do me to a an are was",
        "nein falsch non faux mal sbagliato nicht bitte fout nie źle нет не так неправильно",
        "不对 错了 違います 違う",
    )
    for word in line.split()
)
#: A remark about the given reply; next to a request without a reply it only misleads.
_REMARK = re.compile(
    r"^(?:(?:no|nope|ugh|hm+|sorry|oh|whoa|wow|wait|hey|ok(?:ay)?|well|yikes|argh|meh|man|dude)[,.!]* )?(?:"
    r"(?:that|this|it)(?:'s| is| was| sounds?| looks?)\b[^?,;:\d\"]{0,20}\b(?:too|much|long|short|brief|"
    r"boring|dry|cold|rude|complicated|complex|difficult|hard|confusing|bad|awful|terrible|wrong)\b"
    r"|(?:far |way |much )?too\b|i (?:don't|do not|can't|cannot) (?:want to read|read|understand|"
    r"get|follow)\b|not like (?:that|this)\b|you forgot\b"
    r"|you(?:'re| are)(?: being)?(?: far| way| much)?(?: too| so| very)? (?:rude|stiff|cold|wordy|verbose|"
    r"boring|formal|bossy|vague|long-winded)\b)[^?,;:\d\"]{0,40}$",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\bplease\b|^(?:just |now )?(?:answer|use|say|give|explain|begin|start|keep|make|write|tell|show|speak|"
    r"talk|put|list|add|be|do|reply|respond|sound|skip|stop|drop|cut|stick|stay|loosen|lighten)\b"
    r"|\bi(?:'d| would)? (?:want|need|like|prefer)\b",
    re.IGNORECASE,
)
_TABLE = read_patterns("unsafe_hints", "openclaw_rl.judge")
_UNSAFE = re.compile("|".join(_TABLE["unsafe"]), re.IGNORECASE)
_OPPOSITES = tuple(
    (re.compile(one, re.IGNORECASE), re.compile(other, re.IGNORECASE))
    for one, _, other in (form.partition("  versus  ") for form in _TABLE["opposites"])
)


def verbatim_hints(case: JudgeCase) -> tuple[str, ...]:
    """The user's own correcting sentences, or else that a tool call failed.

    Each thing that is asked for becomes a hint. If the user says what they want, remarks about the given
    reply are left out: the teacher sees the hint with the request only, and would answer "That was too long"
    with an apology.
    """
    exchange = CaseTexts(case)
    spoken = separate(_correcting_sentences(exchange.user_text, exchange.request))
    if len(spoken) > MAX_HINTS:
        spoken = [hint for hint in spoken if is_wish(hint)]
    return filter_hints(spoken or failures(case), case)


def failures(case: JudgeCase) -> list[str]:
    """Fixed sentences for the tool calls that failed."""
    tools = [message for message in case.next_state or () if message.get("role") == "tool"]
    lines = [line for message in tools if (line := error_in(message)) is not None]
    return list(dict.fromkeys(failure_in_words(line) for line in lines))


def filter_hints(hints: Sequence[str], case: JudgeCase) -> tuple[str, ...]:
    """Up to three different hints worth training on; if no user said anything, only our fixed sentences."""
    exchange = CaseTexts(case)
    said, failed = own_words(exchange.user_text), failures(case)
    if exchange.results and not said.strip():
        return tuple(hint for hint in hints if hint in failed)[:MAX_HINTS]
    # With tool results, words of the request do not prove that the hint came from the user.
    source = " ".join([said, *([] if exchange.results else [exchange.request]), *failed])
    kept: list[str] = []
    correcting = [" ".join(s for s in sentences(h) if corrects(s, exchange.request)) for h in hints]
    for hint in (" ".join(hint.split()) for hint in correcting):
        if hint not in kept and is_safe(hint) and not is_trivial(hint) and is_grounded(hint, source):
            kept.append(hint)
    return tuple(hint for hint in kept if not any(contradict(hint, other) for other in kept))[:MAX_HINTS]


def is_trivial(hint: str) -> bool:
    words = [word for word in _WORD.findall(hint.lower()) if word not in _EMPTY_WORDS]
    return not words or (len(words) == 1 and words[0].isdigit() and len(words[0]) < 2)


def is_safe(hint: str) -> bool:
    """Nothing dangerous or private, nothing addressed to a judge, at most 400 characters."""
    if len(hint) > _MAX_CHARS or _UNSAFE.search(hint):
        return False
    return neutralise(hint).split() == hint.split()


def is_grounded(hint: str, source: str) -> bool:
    """Whether enough of the hint's words come from the source."""
    words = {word[:5] for word in _WORD.findall(hint.lower()) if word not in _EMPTY_WORDS and len(word) > 3}
    known = {word[:5] for word in _WORD.findall(source.lower())}
    return not words or len(words & known) / len(words) >= _MIN_GROUNDED


def contradict(first: str, second: str) -> bool:
    """Also true of a hint that contradicts itself."""
    for one, other in _OPPOSITES:
        sides = [(bool(one.search(hint)), bool(other.search(hint))) for hint in (first, second)]
        if any(a[0] and b[1] for a in sides for b in sides):
            return True
    return False


def complains(case: JudgeCase) -> bool:
    """Whether the next user message looks like a complaint; after a cut-off reply many users just go on."""
    return any(_is_telling(sentence) for sentence in sentences(own_words(CaseTexts(case).user_text)))


def _is_telling(sentence: str) -> bool:
    table = cue_table()
    return languages.complains(sentence) or any(
        cue.search(sentence) for name in _CORRECTS for cue in table[name]
    )


def _correcting_sentences(text: str, request: str) -> list[str]:
    said = [s for s in sentences(own_words(text)) if corrects(s, request)]
    rest = [s for s in said if not _REMARK.search(s)]
    # A remark stays if it alone can be understood: "Too stiff! Loosen up a bit."
    if any(_REQUEST.search(s) and not is_trivial(s) for s in rest) and (
        any(map(is_wish, rest)) or not any(map(is_wish, said))
    ):
        said = rest
    if len(said) <= 3 and sum(map(len, said)) <= _MAX_CHARS:
        return said
    chosen = [s for s in said if _is_telling(s) or is_wish(s)]
    chosen = sorted(chosen, key=is_wish, reverse=True)[:3]
    while chosen and sum(map(len, chosen)) + len(chosen) > _MAX_CHARS:
        chosen.pop()
    return chosen
