"""Deterministic rules in one ordered table; the first one that applies overrides the votes.

Each rule is a small class with a name and ``apply(case) -> Verdict | None``. A new rule is one
class and one line in ``RULES``.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from openclaw_rl.forms import read
from openclaw_rl.judge.exchange import CaseTexts, own_words, text_of
from openclaw_rl.judge.feedback import rating_in
from openclaw_rl.judge.languages import reaction
from openclaw_rl.judge.tool_errors import error_in
from openclaw_rl.judge.wishes import asks, is_wish, stems
from openclaw_rl.reactions import rating_of
from openclaw_rl.text import sentences
from openclaw_rl.types import JudgeCase, Message, Verdict


class Rule(Protocol):
    name: str

    def apply(self, case: JudgeCase) -> Verdict | None: ...


class DegenerateReply:
    """An empty reply, a single character, or endless repetition; not trained on."""

    name = "degenerate"

    def apply(self, case: JudgeCase) -> Verdict | None:
        if case.reply.get("tool_calls"):
            return None
        problem = degeneration(text_of(case.reply), case)
        return None if problem is None else _verdict(self.name, -1, 0.5, problem, trainable=False)


class ExplicitFeedback:
    """👍, 👎 or a rating in the user's next message, in the user's own words."""

    name = "feedback"

    def apply(self, case: JudgeCase) -> Verdict | None:
        score = user_rating(case)
        if score is None:
            return None
        return Verdict(score, 0.97, "feedback", reason="the user rated the reply")


class OnlyNotices:
    """The next state consists only of notices of reactions to other messages."""

    name = "only_notices"

    def apply(self, case: JudgeCase) -> Verdict | None:
        exchange = CaseTexts(case)
        if not exchange.notices or exchange.has_user or exchange.results:
            return None
        return _verdict(self.name, 0, 0.9, "a reaction on another message says nothing about this reply")


class ToolError:
    """A tool result that is an error by its structure; text that mentions errors does not count."""

    name = "tool_error"

    def apply(self, case: JudgeCase) -> Verdict | None:
        for message in case.next_state or ():
            if message.get("role") == "tool" and (line := error_in(message)) is not None:
                return _verdict(self.name, -1, 0.9, f"the tool reported an error: {line}")
        return None


class RepeatedCall:
    """The same tool call with the same arguments as in the previous turn."""

    name = "repeated_call"

    def apply(self, case: JudgeCase) -> Verdict | None:
        calls = _call_keys(case.reply)
        if not calls:
            return None
        for message in reversed(case.messages):
            if message.get("role") == "user":
                return None
            if message.get("role") == "assistant":
                repeated = set(calls) & set(_call_keys(message))
                name = next(iter(sorted(repeated)))[0] if repeated else ""
                return _verdict(self.name, -1, 0.85, f"repeats its last call of {name}") if repeated else None
        return None


class AskedAgain:
    """The user repeats the request, literally or in words that add nothing: it was not answered."""

    name = "asked_again"

    def apply(self, case: JudgeCase) -> Verdict | None:
        exchange = CaseTexts(case)
        asked, said = (_words(text) for text in (exchange.request, exchange.user_text))
        literally = len(said) <= len(asked) + 2 and asked == said[-len(asked) :]
        if len(asked) < 3 or not (literally or self._adds_nothing(exchange)):
            return None
        return _verdict(self.name, -1, 0.8, "the user asked the same thing again")

    def _adds_nothing(self, exchange: CaseTexts) -> bool:
        """Whether it asks for something with exactly the content words of the previous request."""
        said = stems(own_words(exchange.user_text))
        return len(said) > 1 and said == stems(exchange.request) and asks(exchange.user_text)


class WantedWords:
    """The user says which words replies should begin or end with, and this reply does not.

    The words may be anything, such as "Have a nice day": their meaning is no feedback on the reply.
    """

    name = "wanted_words"

    def apply(self, case: JudgeCase) -> Verdict | None:
        for found in _WANTED_WORDS.finditer(own_words(CaseTexts(case).user_text)):
            wanted, reply = _words(found["words"]), _words(text_of(case.reply))
            at_end = found["where"].lower().startswith(("end", "fin", "clo"))
            has = reply[-len(wanted) :] if at_end else reply[: len(wanted)]
            if wanted and has != wanted:
                where = "end" if at_end else "begin"
                return _verdict(self.name, -1, 0.85, f"the reply does not {where} with the wanted words")
        return None


class LastingWish:
    """The user says only how replies should be from now on: this one was not like that.

    A wish for something kind or cheerful is easily taken for praise.
    """

    name = "lasting_wish"

    def apply(self, case: JudgeCase) -> Verdict | None:
        said = own_words(CaseTexts(case).user_text).strip()
        if len(said) > _LONGEST_WISH or not _LASTING.search(said) or _PLEASED.search(said):
            return None
        if not all(map(is_wish, sentences(said))):
            return None
        reading = read([said])
        if reading.forms and reading.meets(text_of(case.reply)):
            return None
        return _verdict(self.name, -1, 0.85, "the user says how replies should be from now on")


class OtherLanguage:
    """Praise, a complaint or the next question in a language that the voting model knows poorly."""

    name = "other_language"

    def apply(self, case: JudgeCase) -> Verdict | None:
        score = reaction(own_words(CaseTexts(case).user_text)) if CaseTexts(case).has_user else None
        if score is None:
            return None
        said = {1: "praises the reply", 0: "goes on", -1: "wants the reply to differ"}[score]
        return _verdict(self.name, score, 0.8, f"the user {said}")


class CutOff:
    """Ended by the token limit, unless the client set the limit or the user praises the reply."""

    name = "cut_off"

    def apply(self, case: JudgeCase) -> Verdict | None:
        if case.finish_reason != "length" or case.own_limit or _praises(case):
            return None
        return _verdict(self.name, -1, 0.7, "the reply was cut off at the token limit")


class Regenerated:
    """The request was sent again without comment: a weak signal with low confidence."""

    name = "regenerated"

    def apply(self, case: JudgeCase) -> Verdict | None:
        if not case.regenerated or case.next_state:
            return None
        return _verdict(self.name, -1, 0.35, "the same request was asked again after the reply")


class ToolsAnswered:
    """Tools answered, and no rule found an error: neutral, for this alone is no progress."""

    name = "tools_answered"

    def apply(self, case: JudgeCase) -> Verdict | None:
        exchange = CaseTexts(case)
        if exchange.has_user or not exchange.results:
            return None
        return _verdict(self.name, 0, 0.9, "the tools reported no error")


class SessionEnded:
    """Nothing followed the reply, so there is nothing to judge it by."""

    name = "session_ended"

    def apply(self, case: JudgeCase) -> Verdict | None:
        if case.next_state:
            return None
        return _verdict(self.name, 0, 0.0, "the session ended with this reply", trainable=False)


_WANTED_WORDS = re.compile(
    r"(?:^|[.!?,;\n][ \t]*|\b(?:please|always|to|you|i said|not|didn't|should|must|and)[ \t]+)"
    r"(?P<where>begin|start|open|end|finish|close)\b"
    r"(?: (?:it|this|(?:every|each|all|your|the|any|an?)(?: of your)?"
    r" (?:answers?|repl(?:y|ies)|messages?|responses?)))?"
    r" with(?: the)?(?: words?| phrase| sentence)? ?[:\"'“‘]?"
    r"(?P<words>[^.!?\n\"”]{2,60})[.!\"”'’]*(?=$|\s)",
    re.IGNORECASE,
)
_LONGEST_WISH = 300
#: "Always" and "every response" alone occur in tasks, too: "a story that always rhymes".
_LASTING = re.compile(
    r"\b(?:from (?:now|here) on|in (?:the )?future|next time|always (?:answer|reply|respond|talk|speak)|"
    r"(?:every|each) (?:answer|reply))\b",
    re.IGNORECASE,
)
#: With one of these, the reply may be what the user wants to go on with.
_PLEASED = re.compile(
    r"\b(?:keep|continue|carry on|go on|stay|like (?:this|that|these)|thanks?|great|perfect|good|nice|love|"
    r"excellent|awesome|exactly|well done|better)\b|\?",
    re.IGNORECASE,
)
RULES: tuple[Rule, ...] = (
    DegenerateReply(),
    ExplicitFeedback(),
    OnlyNotices(),
    ToolError(),
    RepeatedCall(),
    AskedAgain(),
    WantedWords(),
    LastingWish(),
    OtherLanguage(),
    CutOff(),
    Regenerated(),
)
#: Applied after the others, where no votes follow.
LAST_RULES: tuple[Rule, ...] = (ToolsAnswered(), SessionEnded())


def apply_rules(case: JudgeCase, rules: tuple[Rule, ...] = RULES) -> Verdict | None:
    return next((verdict for rule in rules if (verdict := rule.apply(case)) is not None), None)


def user_rating(case: JudgeCase) -> int | None:
    """+1 or −1 if the user's next message has an explicit rating; None if ratings contradict each other."""
    exchange = CaseTexts(case)
    if (said := rating_in(own_words(exchange.user_text))) is not None:
        return said
    earlier = [text_of(message) for message in case.messages if message.get("role") == "assistant"]
    return rating_of(exchange.notices, text_of(case.reply), earlier)


def degeneration(text: str, case: JudgeCase | None = None) -> str | None:
    """What is degenerate about a text; None for an ordinary one."""
    stripped = text.strip()
    if not stripped:
        return "the reply is empty"
    if len(stripped) == 1 and not (stripped.isalnum() and _wants_one_character(case)):
        return "the reply is a single character"
    return "the reply repeats itself without end" if _repeats(stripped) else None


def _wants_one_character(case: JudgeCase | None) -> bool:
    """``7`` and ``W`` are answers to short questions, not signs of collapse."""
    return case is not None and bool(CaseTexts(case).request)


_SAME_CHARACTER = re.compile(r"([^\s\d#*=_.\-])\1{24,}")


def _repeats(text: str) -> bool:
    if _SAME_CHARACTER.search(text):
        return True
    words = text.lower().split()
    for size in (1, 2, 3, 4, 6, 8, 12, 16):
        tail, needed = words[-size:], max(4, 24 // size)
        if len(words) < size * needed:
            continue
        if all(words[-size * (n + 1) : len(words) - size * n] == tail for n in range(needed)):
            return True
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 8]
    return len(lines) >= 8 and len(set(lines)) <= len(lines) // 6


def _praises(case: JudgeCase) -> bool:
    from openclaw_rl.judge.cues import USER_CUES, user_cues

    signs = dict(zip(USER_CUES, user_cues(CaseTexts(case)), strict=True))
    good = signs["thanks"] + signs["praise"] + signs["works"] + signs["adopts"]
    return good > 0 and good > signs["wrong"] + signs["change"] + signs["said"] and not signs["question_end"]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _call_keys(message: Message) -> list[tuple[str, str]]:
    return [
        (str(call.get("name")), _canonical(call.get("arguments"))) for call in message.get("tool_calls") or ()
    ]


def _canonical(arguments: Any) -> str:
    """Arguments are compared by value: white space and key order do not matter."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return " ".join(str(arguments).split())
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _verdict(name: str, score: int, confidence: float, reason: str, trainable: bool = True) -> Verdict:
    return Verdict(score, confidence, f"rule:{name}", trainable=trainable, reason=reason)
