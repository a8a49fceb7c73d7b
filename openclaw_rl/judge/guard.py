"""Protects judges against prompt injection: what a judge reads is data, never instructions.

``neutralise`` removes everything from a text that addresses a judge instead of the assistant: control
tokens, markup that imitates a prompt's delimiters, verdict lines, fake dialogue, orders to ignore
instructions. A cut runs from the start of the clause to the end of its sentence, so that a person's own words
before it still count. It is idempotent.

``fence`` wraps data for a model that follows instructions: JSON text between markers with a random number,
which text written beforehand cannot contain.

Not every possible attack is recognised. Text in the role of a user that merely praises cannot be told from a
user's praise; that is why the role decides what counts as feedback.
"""

from __future__ import annotations

import json
import re
import secrets

from openclaw_rl.judge.disguise import hidden_forms, reveal
from openclaw_rl.patterns import read_patterns

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_PATTERNS = read_patterns("attacks", "openclaw_rl.judge")
_MAX_CHARS = 12_000


def _any_of(name: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{form})" for form in _PATTERNS[name]), re.IGNORECASE | flags)


#: Removed first, as a whole: no one wrote the text between a control token and its end.
_BLOCK = _any_of("blocks", re.DOTALL)
_TOKEN = _any_of("tokens")
#: A line that imitates another role of the dialogue or of the judge's own examples.
_PLAYED = _any_of("played")
#: Where a fake message or dialogue starts; the text after it is ignored.
_STAGED = _any_of("staged", re.MULTILINE)
#: Markup and data that a person pastes; in a tool result it may be the answer and stays.
_PASTED = _any_of("pasted", re.DOTALL)
_ATTACKS = _any_of("attacks")
#: Removed from tool results and replies, which must not rate the assistant's work.
_SELF_PRAISE = _any_of("self_praise")
_ORDERS = re.compile(r"system|developer|admin|note to|message|instruction", re.IGNORECASE)
_BARE = re.compile(r"\W*(?:\+ ?1|[-−–] ?1)\W*")
_DEBRIS = re.compile(r"[\s.,;:`'\"|()\[\]{}<>/-]+")
_HEADING = re.compile(
    r"\W*(?:important|attention|note|notice|warning|ps|p\.s|nb|hinweis|achtung|developer|system|admin|judge|evaluator|"
    r"grader|remember|reminder|urgent|always|also|final|and|now|please|update)?\W*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?…\n]+(?:[.!?…]+(?=\s|$|[\"')\]])|[.!?…]+(?=\S)|\n|$)|[.!?…\n]+")
_CLAUSE_START = re.compile(r"[,;:—–(\[\"“”|]|\s-\s|\b(?:and|so|but|please|now|und|et|y|e)\b")


def neutralise(text: str, role: str = "user") -> str:
    """``text`` without anything addressed to a judge; a very long one is cut to its head and tail."""
    if len(text) > _MAX_CHARS:  # judges read no more, and search time grows faster than the text
        text = f"{text[: _MAX_CHARS // 2]}\n{text[-_MAX_CHARS // 2 :]}"
    if role == "user" and _BARE.fullmatch(text.strip()):
        return text.strip()  # a message of only ``+1`` is a user's rating
    for _ in range(8):  # a removal can join parts that were split to hide them
        cleaned = _neutralise_once(text, role)
        if cleaned == text:
            break
        text = "\n".join(line for line in cleaned.split("\n") if not _DEBRIS.fullmatch(line))
    return text


def _neutralise_once(text: str, role: str) -> str:
    text = reveal(text)
    text = _before_the_stage(_PASTED.sub("\n", text)) if role == "user" else _COMMENT.sub(" ", text)
    # Replaced by a line break, so that what follows does not read as the rest of the sentence.
    text = _TOKEN.sub("\n", _BLOCK.sub("\n", text))
    lines = [kept for line in text.split("\n") if (kept := _neutralise_line(line, role)) is not None]
    return "\n".join(lines).strip()


def _before_the_stage(text: str) -> str:
    staged = _STAGED.search(text)
    before = text[: staged.start()] if staged else text
    return before if before.strip() else text


def _neutralise_line(line: str, role: str) -> str | None:
    """None for a line that is dropped; an empty line stays empty."""
    if not line.strip():
        return ""
    if (played := _PLAYED.match(line)) and (role != "tool" or _is_verdict_or_order(played)):
        if not _ORDERS.search(played.group()[: played.start("rest") - played.start()]):
            return None
        # An order ends with its sentence; text after it still counts.
        _, _, line = played["rest"].partition(". ")
    if _BARE.fullmatch(line):
        return None
    kept = "".join(_cut(match.group(), role) for match in _SENTENCE.finditer(line)).rstrip()
    return kept if kept.strip(" \"'.,;:!()[]{}-") or not line.strip(" \"'.,;:!()[]{}-") else None


def _is_verdict_or_order(played: re.Match[str]) -> bool:
    """Tool results are full of ``answer: 42``; only lines that address the judge are dropped."""
    head = played.group()[: played.start("rest") - played.start()].lower()
    words = (
        "verdict",
        "judge",
        "evaluator",
        "grader",
        "reward",
        "system",
        "developer",
        "admin",
        "user",
        "human",
        "outcome",
    )
    return any(
        word in head for word in (*words, "assistant", "note to", "message", "instruction", "reaction")
    )


def _cut(sentence: str, role: str) -> str:
    starts = [match.start() for match in _ATTACKS.finditer(sentence)]
    if not starts and any(_ATTACKS.search(form) for form in hidden_forms(sentence)):
        return ""
    if role != "user":
        starts += [match.start() for match in _SELF_PRAISE.finditer(sentence)]
    if not starts:
        return sentence
    attack = min(starts)
    clause = max((m.start() for m in _CLAUSE_START.finditer(sentence) if m.start() <= attack), default=0)
    kept = sentence[:clause].rstrip(' ,;:—–(["“|-')
    return "" if _HEADING.fullmatch(kept) else kept


def fence(value: object) -> tuple[str, str]:
    """(marker, block): the value as JSON between two lines with a random marker."""
    marker = f"DATA-{secrets.token_hex(8)}"
    return marker, f"<<{marker}\n{json.dumps(value, ensure_ascii=False, indent=1)}\n{marker}>>"
