"""Finds the sentences in which a user says how a reply should differ, and describes tool errors.

Questions, new tasks and anything personal or secret are left out, since hints are stored and trained on. A
tool's own text never becomes a hint, whoever wrote it; errors are described by fixed sentences.
"""

from __future__ import annotations

import re

from openclaw_rl.judge.languages import complains
from openclaw_rl.patterns import read_patterns
from openclaw_rl.text import sentences

_FORMS = {
    name: re.compile("|".join(f"(?:{form})" for form in forms), re.IGNORECASE)
    for name, forms in read_patterns("corrections", "openclaw_rl.judge").items()
}
_CONTENT = re.compile(r"[^\W\d_]{4,}|\d+")
#: This many new words make a request a new task.
_NEW_WORDS = 2
_FAILED = "The tool call failed"
_FAILURES = {
    r"not found|no such|does(?:n't| not) exist|unknown|\b404\b": "what it named is not there",
    r"denied|permission|forbidden|unauthori[sz]ed|\b40[13]\b": "it was not permitted",
    r"tim(?:ed? ?out|eout)": "it took too long",
    r"invalid|must be|required|missing|expected|syntax|argument|schema|pars|\b4(?:00|22)\b": (
        "its arguments were not valid"
    ),
}


def corrects(sentence: str, request: str) -> bool:
    """Whether a sentence may be about the reply to ``request``, and may be stored."""
    if is_personal(sentence):
        return False
    return not _asks_for_something_else(sentence, request)


def is_personal(text: str) -> bool:
    """Whether a text contains private data: names, addresses, numbers, secrets."""
    return bool(_FORMS["personal"].search(text))


def asks_again(request: str, said: str) -> bool:
    """Whether a user who sent ``request`` and then ``said`` wants the request answered again.

    False if they also ask for something else, even after a complaint.
    """
    if said.split()[-len(request.split()) :] == request.split():
        return True
    return not any(_asks_for_something_else(sentence, request) for sentence in sentences(said))


def _asks_for_something_else(sentence: str, request: str) -> bool:
    if _FORMS["question"].search(_unquoted(sentence)):
        return not (_FORMS["polite"].search(sentence) or complains(sentence))
    return _is_new_task(sentence, request)


def failure_in_words(line: str) -> str:
    """A fixed sentence that describes a tool's error line."""
    why = next((words for sign, words in _FAILURES.items() if re.search(sign, line, re.I)), None)
    return f"{_FAILED}: {why}." if why else f"{_FAILED}."


def is_failure_in_words(text: str) -> bool:
    """Whether a hint is such a fixed sentence, and so not a user's wish."""
    return text.startswith(_FAILED)


def _is_new_task(sentence: str, request: str) -> bool:
    if not (asks := _FORMS["task"].match(sentence)) or _FORMS["about_reply"].search(_unquoted(sentence)):
        return False
    return len(_stems(sentence[asks.end() :]) - _stems(request)) >= _NEW_WORDS


def _unquoted(sentence: str) -> str:
    """Without quotations: a quoted question is not a question of the user."""
    return re.sub(r"\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']+'(?!\w)", "…", sentence)


def _stems(text: str) -> set[str]:
    return {word[:5].lower() for word in _CONTENT.findall(text)}
