"""Where what was learned holds: in plain chats, and under system prompts that somebody complained under.

A wish from a chat ("answer in one sentence") is not meant for a program that has dates extracted by the same
model, nor for the calls that an agent makes for itself: a router, a summary, a title. These come with other
system prompts. The base goes on answering them, bit for bit, until somebody complains there.

System prompts are compared by their pairs of words, of which the 64 lowest hashes are kept: a date, a name or
a paragraph more leaves a long prompt what it was, and nothing of its text can be read from the hashes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from openclaw_rl.types import Message

Role = tuple[int, ...]

_WORD = re.compile(r"[^\W\d_]+")
_KEPT = 64
#: What two prompts must share: short ones nearly all of it, long ones most of what does not change.
_SHARED_SHORT, _SHARED = 0.8, 0.4
#: "You are a helpful assistant." says nothing about a role, as long as it does not say how to answer.
_SHORT_WORDS = 10
_NOBODY = re.compile(r"you are\b.*\bassistant\b", re.IGNORECASE | re.DOTALL)
_TELLS_HOW = re.compile(
    r"\b(?:only|just|json|answers?|repl(?:y|ies)|responds?|outputs?|formats?|must|always|never|extracts?|"
    r"translat\w+|classif\w+|summari[sz]\w+)\b",
    re.IGNORECASE,
)


def system_prompt(messages: Iterable[Message]) -> str:
    """What stands before the conversation; a note in its midst is none."""
    leading = takewhile(lambda message: message["role"] == "system", messages)
    return "\n".join(message.get("content") or "" for message in leading).strip()


def is_plain(prompt: str) -> bool:
    """Whether a system prompt gives no role, so that a request is a chat like any other."""
    if not prompt:
        return True
    short = len(prompt.split()) <= _SHORT_WORDS
    return short and bool(_NOBODY.match(prompt)) and not _TELLS_HOW.search(prompt)


@lru_cache(maxsize=256)
def role_of(prompt: str) -> Role:
    """What is left of a system prompt to recognise it by."""
    words = [word.lower() for word in _WORD.findall(prompt)]
    pairs = {" ".join(words[n : n + 2]) for n in range(max(1, len(words) - 1))}
    return tuple(sorted(map(_hash, pairs))[:_KEPT])


def alike(one: Sequence[int], other: Sequence[int]) -> bool:
    """Of the lowest hashes of both together, the share that both have estimates what their prompts share."""
    lowest = sorted({*one, *other})[:_KEPT]
    shared = {*one} & {*other}
    is_short = min(len(one), len(other)) < _KEPT
    least = _SHARED_SHORT if is_short else _SHARED
    return bool(lowest) and sum(each in shared for each in lowest) >= least * len(lowest)


def holds(roles: Sequence[Sequence[int]], prompt: str) -> bool:
    """Whether what was learned under these roles holds under this system prompt."""
    return is_plain(prompt) or any(alike(role, role_of(prompt)) for role in roles)


def with_roles(roles: Iterable[Role], prompts: Iterable[str]) -> list[Role]:
    """And those of further system prompts that are like none of them."""
    known = list(roles)
    for prompt in prompts:
        if not holds(known, prompt):
            known.append(role_of(prompt))
    return known


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
