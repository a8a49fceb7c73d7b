"""Reads what a wish asks of a reply's form, where it says so exactly: number of sentences, first words …

Such a wish needs no judge: code can check whether a reply meets it, and most replies can be made to meet it
by cutting, reformatting or adding words, without changing their meaning. So a model can learn it from its
own good replies, even one that cannot follow the wish when its prompt states it.

Only explicit wording counts as exact. "Begin with Well now" names words, "begin with a summary" does not. A
sentence with anything else in it is left to the hinted base.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.forms.points import forms_of
from openclaw_rl.forms.shapes import (
    LANGUAGES,
    Form,
    addressed,
    as_list,
    asking,
    count_words,
    ending,
    exact_words,
    exclaimed,
    in_language,
    in_sentences,
    in_words,
    letters,
    opening,
)
from openclaw_rl.forms.wish_reading import Clause, read_parts
from openclaw_rl.forms.wish_table import QUOTED

_SMALL = "one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = {word: n for n, word in enumerate(_SMALL.split(), 1)} | {
    "a single": 1,
    "fifteen": 15,
    "twenty": 20,
    "twenty-five": 25,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "eighty": 80,
    "a hundred": 100,
}
_NUMBER = "|".join([r"\d{1,3}", *sorted(_NUMBERS, key=len, reverse=True)])
_MOST_QUOTED_WORDS = 8
#: Sentences longer than this, in characters, are not read.
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Reading:
    """The forms read from a user's wishes."""

    forms: tuple[Form, ...] = ()
    whole: bool = False
    """Whether the wishes ask for nothing else."""

    def meets(self, reply: str) -> bool:
        return all(form.meets(reply) for form in self.forms)

    def can_tell(self, finished: bool) -> bool:
        """Whether a reply shows if it meets the forms; some forms show only once it is finished."""
        return bool(self.forms) and (finished or not any(form.name in _AT_THE_END for form in self.forms))

    def made(self, reply: str) -> str | None:
        """The reply changed to meet all forms; None if that is not possible."""
        for form in self.forms:
            if not form.meets(reply) and form.make is not None:
                reply = form.make(reply)
            if not form.meets(reply):
                return None
        return reply

    @property
    def selects(self) -> bool:
        """Whether only some kinds of replies can be made to meet the forms."""
        return any(form.selects for form in self.forms)

    @property
    def cuts(self) -> bool:
        """Whether the forms only cut something off the end."""
        return all(form.cuts for form in self.forms)

    @property
    def can_make(self) -> bool:
        """Whether ordinary replies can be made to meet the forms, and the wishes ask for nothing else."""
        return self.whole and bool(self.forms) and all(form.make is not None for form in self.forms)


NOTHING_READ = Reading()


def read(wishes: Sequence[str]) -> Reading:
    """Read all of a user's current wishes."""
    found: list[Form] = []
    whole = bool(wishes)
    for wish in wishes:
        clear: list[Form] = []
        unread: list[str] = []
        for said in _clauses(wish):
            forms, is_all = _read(said)
            if not is_all and (by_points := _by_points(said)):
                forms, is_all = by_points, True
            for form in forms:
                found = [*(f for f in found if f.name != form.name), form]
            if is_all:
                clear += forms
            elif not _REMARK.fullmatch(said):
                unread.append(said)
        whole = whole and bool(clear) and all(_says_the_same(said, clear) for said in unread)
    return Reading(tuple(sorted(found, key=lambda form: _ORDER.index(form.name))), whole)


#: Phrases that may precede or follow a form without asking for anything else.
_BEFORE = """
no|and|but|okay|ok|now|again|also|so|from now on|next time|in the future|in future|always|please|just|only
simply|still|instead|could you|can you|would you|will you|you|i|we|want|would like|'d like|need|prefer|asked
told|said|wish|for|to|did not|didn't|forgot|should|must|have|were|are|do|make sure|remember|try|that|your|the
all|every|answers|answer|replies|reply|responses|response|respond|be|keep|it|write|give|me|say it|use|using
with|in|as|of|speak|talk|everything|limit|yourself|a|stick|format|them|every time|each time
"""
_AFTER = """
please|from now on|next time|always|in the future|in future|every time|each time|for me|okay|ok|thanks
thank you|again|instead|only|at all
"""
_IN_REPLIES = r"in (?:your|every|each|all|the)(?: \w+)? (?:answers?|repl(?:y|ies)|responses?)"
_WHEN = r"when(?:ever)? you (?:answer|reply|talk to me|speak to me)"


def _any(phrases: str) -> str:
    return "|".join(sorted(re.split(r"[|\n]", phrases.strip()), key=len, reverse=True))


_LEAD = rf"(?:(?:{_any(_BEFORE)})\b[,: ]*)*"
_TAIL = rf"(?:[,; ]*(?:{_any(_AFTER)}|{_WHEN}|{_IN_REPLIES}))*[\s.!?]*"
_REPLIES = (
    r"(?: (?:it|this|that|them|everything|"
    r"(?:(?:every|each|all|your|the|any|an?)(?: one)?(?: of)?(?: your| my| the)?(?: single)? )"
    r"(?:answers?|repl(?:y|ies)|messages?|responses?|explanations?)))?"
)
#: Words named literally: in quotes, after "the words", or with a capital letter.
_NAMED = (
    r"(?:(?:the |this |these )?(?:words?|phrase|sentence|saying|greeting|line|term)[: ]+"
    r"[\"“‘'«]?(?P<a>[^\"”»\n]+?)[\"”’'»]?|[\"“‘«'](?P<b>[^\"”»\n]+?)[\"”’»']|(?P<c>(?-i:[A-Z])[^\"”»\n]*?))"
)
_SHORTLY = r"(?:(?P<short>short|brief|simple|quick)[, ]+)?(?:and (?:short|simple) )?"
_LIMIT = (
    r"(?:at most|no more than|not more than|no longer than|fewer than|less than|under|below|within|up to|"
    r"(?:a )?max(?:imum)?(?: of)?)"
)

_LANGUAGE = "|".join(LANGUAGES)
#: Pattern → form. A sentence asks for nothing else only if all of it matches.
_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], Form | None]], ...] = (
    (
        rf"(?:begin|start|open)(?:s|ing|ning)?{_REPLIES} "
        rf"(?:with|by (?:saying|writing)|off with)[: ]+{_NAMED}",
        lambda m: _of_named(m, opening),
    ),
    (
        rf"(?:say|put|write|add) {_NAMED} (?:first|before (?:you answer|answering|anything else)|"
        r"at the (?:very )?(?:beginning|start)(?: of (?:every|each|your|all) \w+)?)",
        lambda m: _of_named(m, opening),
    ),
    (
        rf"(?:end|finish|close|conclude)(?:s|ing)?{_REPLIES} (?:with|by (?:saying|writing))[: ]+"
        r"(?:a |one )?(?:\w+ )?question(?: (?:to|for) me)?",
        lambda m: asking(),
    ),
    (
        r"ask me (?:a|one) (?:\w+ )?question (?:back )?at the end(?: of (?:every|each|your) \w+)?",
        lambda m: asking(),
    ),
    (
        rf"(?:end|finish|close|conclude)(?:s|ing)?{_REPLIES} (?:with|by (?:saying|writing))[: ]+{_NAMED}",
        lambda m: _of_named(m, ending),
    ),
    (
        rf"(?:say|put|write|add) {_NAMED} (?:last|at the (?:very )?end(?: of (?:every|each|your|all) \w+)?)",
        lambda m: _of_named(m, ending),
    ),
    (
        r"(?:call|address) me(?: as)?[: ]+[\"“‘']?"
        r"(?!(?:an?|the|when|if|back|later|again|by|that|tomorrow|names?)\b)"
        r"(?P<c>(?-i:[A-Z])[^\W\d_]+ (?-i:[A-Z])[^\W\d_]+|[^\W\d_]+)[\"”’']?",
        lambda m: addressed(m["c"]),
    ),
    (rf"exactly (?P<n>{_NUMBER}) words?", lambda m: exact_words(_number(m["n"]))),
    (rf"{_LIMIT} (?P<n>{_NUMBER}) words?(?: long)?", lambda m: in_words(_number(m["n"]))),
    (
        rf"(?P<n>{_NUMBER}) words?(?:,? (?:at most|or (?:less|fewer)|max(?:imum)?|tops))",
        lambda m: in_words(_number(m["n"])),
    ),
    (
        rf"(?P<most>{_LIMIT} )?(?:exactly |only |just )?(?P<n>{_NUMBER}) {_SHORTLY}sentences?"
        r"(?P<tail>,? (?:at most|or (?:less|fewer)|max(?:imum)?|tops|long))?",
        lambda m: in_sentences(_number(m["n"]), bool(m["most"] or m["tail"]), bool(m["short"])),
    ),
    (
        r"(?:short |simple |clear )?(?:numbered (?:list|points|steps)|list (?:of|with) numbers)",
        lambda m: as_list("1."),
    ),
    (
        r"(?:short |simple |clear )?(?:(?:list (?:of|with) )?bullet(?:ed|s)?(?:[ -]?points?)?(?: list)?)",
        lambda m: as_list("-"),
    ),
    (
        r"(?:only )?(?:(?:capital|block) letters|upper ?case(?: letters)?)|all caps|capitals",
        lambda m: letters(True),
    ),
    (r"(?:only )?(?:small letters|lower ?case(?: letters)?)", lambda m: letters(False)),
    (r"(?:some |more |many |lots of )?exclamation (?:marks|points)", lambda m: exclaimed()),
    (rf"in (?P<l>{_LANGUAGE})", lambda m: in_language(m["l"].lower())),
)
#: Forms are applied in this order: those that cut come before those that add words.
_ORDER = (
    *("language", "markdown", "bold", "emoji", "comma", "apology", "length", "layout", "marks"),
    *("address", "opening", "ending", "letters", "quotes"),
)
_AT_THE_END = ("length", "ending")
#: Says what was wrong, but not what to do.
_REMARK = re.compile(
    r"(?:(?:no|nope|and|but|hey|sorry|again|still|please|ok|okay|wrong|hm+|not (?:like )?(?:that|"
    r"this|so|in english)|"
    r"(?:that|this|it)(?:'s| is| was)|(?:much |way |far |a bit |a little )*too (?:long|short|wordy|"
    r"many words|much(?: text)?)(?: for me)?)[,: ]*)*[\s.!]*",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:no(?!,| (?:more|longer) than)|never|without|stop|avoid|don't|do not|not(?! more than))\b", re.I
)
_DID_NOT = re.compile(r"\b(?:did not|didn't|forgot to|have not|haven't)\b|^no[,.:] |\bnot in english\b", re.I)
_READERS = tuple((re.compile(pattern, re.IGNORECASE), build) for pattern, build in _PATTERNS)
_WHOLE = tuple(re.compile(rf"{_LEAD}(?:{pattern}){_TAIL}", re.IGNORECASE) for pattern, _ in _PATTERNS)


def _read(said: str) -> tuple[list[Form], bool]:
    """The forms that a sentence asks for, and whether it asks for nothing else."""
    if len(said) > _LONGEST:
        return [], False
    for whole, (_, build) in zip(_WHOLE, _READERS, strict=True):
        found = whole.fullmatch(said)
        if found and not _negated(_without_named(found, said)) and (form := build(found)):
            return [form], True
    parts = re.split(r",? and (?:also )?", said)
    read_parts = [_read(part) for part in parts] if len(parts) > 1 else []
    if read_parts and all(is_all for _, is_all in read_parts):
        return [form for forms, _ in read_parts for form in forms], True
    if _negated(said):
        return [], False
    for part, build in _READERS:
        found = part.search(said)
        # Named words that run to the end of the sentence may include more than was meant.
        if found and not any(found.groupdict().get(group) for group in "ac") and (form := build(found)):
            return [form], False
    return [], False


def _by_points(said: str) -> list[Form]:
    """The forms that meet everything a sentence asks for, in any language; none if it asks for more.

    A part that asks for nothing is a reason ("…, I'm driving") or a courtesy.
    """
    found: list[Form] = []
    for part in read_parts(said) if len(said) <= _LONGEST else ():
        if _asks_for_nothing(part):
            continue
        forms = forms_of(part) if part.is_wish and part.points and not part.num_unknown else None
        if forms is None:
            return []
        found += forms
    return found


def _says_the_same(said: str, forms: Sequence[Form]) -> bool:
    """Whether it asks for nothing, or only complains of what the forms change: "Way too much text"."""
    names = {form.name for form in forms}
    parts = [part for part in read_parts(said) if not _asks_for_nothing(part)]
    if any(part.asks or (part.is_wish and not part.points) for part in parts):
        return False
    return all((meant := forms_of(part)) and names.issuperset(form.name for form in meant) for part in parts)


def _asks_for_nothing(part: Clause) -> bool:
    """Not so if it quotes something, which may be what the rest is about: "Shorten this: '…'"."""
    if part.points or part.is_wish or QUOTED.search(part.text):
        return False
    return not (part.asks and part.num_unknown)


def _negated(said: str) -> bool:
    return bool(_NEGATED.search(_DID_NOT.sub(" ", said)))


def _clauses(wish: str) -> list[str]:
    """The wish's sentences; quoted text is never split."""
    parts, start = list[str](), 0
    for end in re.finditer(r"[\"“«][^\"”»]*[\"”»]|(?P<cut>(?<=[.!?])\s+|\n+)", wish):
        if end["cut"]:
            parts.append(wish[start : end.start()])
            start = end.end()
    return [part.strip() for part in (*parts, wish[start:]) if part.strip()]


def _of_named(found: re.Match[str], build: Callable[[str], Form]) -> Form | None:
    said = next(found[group] for group in "abc" if found[group]).strip().rstrip(",;:")
    return build(said) if said and count_words(said) and len(said.split()) <= _MOST_QUOTED_WORDS else None


def _without_named(found: re.Match[str], said: str) -> str:
    """Remove named words, which may look like a negation ("No problem")."""
    for group in "abc":
        if group in found.groupdict() and found[group]:
            said = said.replace(found[group], " ")
    return said


def _number(said: str) -> int:
    return int(said) if said.isdigit() else _NUMBERS[said.lower()]
