"""Where a policy applies: in plain chats, and under system prompts that had complaints.

A wish from a chat ("answer in one sentence") is not meant for a program that extracts dates with the same
model, nor for the calls that an agent makes for itself: a router, a summary, a title. These have other system
prompts. The base keeps answering them, bit for bit, until there is a complaint.

System prompts are compared by their word pairs (MinHash: the 64 lowest hashes are kept). A different date or
name or an extra paragraph does not change a long prompt's role, and its text cannot be read from the hashes.
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
#: Characters of a prompt that are looked at, and kept: requests wait for it.
_LONGEST = 40_000
#: Required similarity of prompts with the same role: high for short ones, lower for long, more variable ones.
_SHARED_SHORT, _SHARED = 0.8, 0.4
#: "You are a helpful assistant." gives no role, unless it also says how to answer.
_SHORT_WORDS = 10
_NOBODY = re.compile(r"you are\b.*\bassistant\b", re.IGNORECASE | re.DOTALL)
_TELLS_HOW = re.compile(
    r"\b(?:only|just|json|answers?|repl(?:y|ies)|responds?|outputs?|formats?|must|always|never|extracts?|"
    r"translat\w+|classif\w+|summari[sz]\w+)\b",
    re.IGNORECASE,
)


def system_prompt(messages: Iterable[Message]) -> str:
    """The leading system messages; those inside the conversation do not count."""
    leading = takewhile(lambda message: message["role"] == "system", messages)
    return "\n".join(message.get("content") or "" for message in leading).strip()


def is_plain(prompt: str) -> bool:
    """Whether a system prompt gives no role, so that the request is a plain chat."""
    if not prompt:
        return True
    prompt = prompt[:_LONGEST]
    short = len(prompt.split()) <= _SHORT_WORDS
    return short and bool(_NOBODY.match(prompt)) and not _TELLS_HOW.search(prompt)


def role_of(prompt: str) -> Role:
    """The hashes by which a system prompt is recognised."""
    return _role_of(prompt[:_LONGEST])


@lru_cache(maxsize=256)
def _role_of(prompt: str) -> Role:
    words = [word.lower() for word in _WORD.findall(prompt)]
    pairs = {" ".join(words[n : n + 2]) for n in range(max(1, len(words) - 1))}
    return tuple(sorted(map(_hash, pairs))[:_KEPT])


def alike(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two roles match, by the share of common hashes among the lowest of both (MinHash)."""
    lowest = sorted({*one, *other})[:_KEPT]
    shared = {*one} & {*other}
    is_short = min(len(one), len(other)) < _KEPT
    least = _SHARED_SHORT if is_short else _SHARED
    return bool(lowest) and sum(each in shared for each in lowest) >= least * len(lowest)


def holds(roles: Sequence[Sequence[int]], prompt: str) -> bool:
    """Whether a policy with these roles applies under this system prompt."""
    return is_plain(prompt) or any(alike(role, role_of(prompt)) for role in roles)


def with_roles(roles: Iterable[Role], prompts: Iterable[str]) -> list[Role]:
    """The roles, plus those of system prompts that match none of them."""
    known = list(roles)
    for prompt in prompts:
        if not holds(known, prompt):
            known.append(role_of(prompt))
    return known


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
