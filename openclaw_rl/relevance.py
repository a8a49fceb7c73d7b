"""Whether a reply is about its request, by the words that this request has and others do not.

Used both to choose replies to learn from and to check a version. A reply with none of its request's words
may still be about it (another language, a plain "Paris"); log-probs decide then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

#: Nats per token by which a reply with no such words must be likelier after its request than after others.
CLEARLY = 0.6
#: Number of other requests that it is compared with.
OTHERS = 3
_WORD = re.compile(r"[^\W\d_]{4,}")
_ANY_WORD = re.compile(r"\w+")
#: Words of a reply that is long enough to tell whether it loops, and its share of phrases said once.
_LONG_REPLY, _LEAST_NEW = 40, 0.6
#: A word in more than about one request in this many is phrasing, not topic.
_COMMON = 12
_STEM = 5
_FUNCTION_WORDS = """
about after again also always another anybody anything around back because been before being best better
between both call can't could days describe different does doing don't down each else even every everything
explain find first from give going good great happen happens have having help here idea important into
interesting just keep kind know learn less like little long look make makes many maybe means might more most
much must name need never next nice often once only other others over people person please point question
really right said same shall short should show simple since some somebody someone something sometimes soon
speak start still such suggest sure take talk tell than that that's their them then there these they thing
things think this those though through time today together tomorrow topic understand until upon used using
very want well were what what's when where whether which while whole whose will with without word words work
world would write year years your yourself
"""


#: One to three words, three times in a row.
_STUTTER = re.compile(r"\b([^\W\d_]{2,}(?:\W{1,3}\w{1,20}){0,2})(?:\W{1,3}\1\b){2}", re.IGNORECASE)


def stutters(reply: str) -> bool:
    """Whether it repeats the same few words in a row."""
    return bool(_STUTTER.search(reply))


def loops(reply: str) -> bool:
    """Whether a large part of a long reply repeats phrases that it had before."""
    words = _ANY_WORD.findall(reply.lower())
    phrases = list(zip(words, words[1:], words[2:], strict=False))
    return len(words) >= _LONG_REPLY and len(set(phrases)) < _LEAST_NEW * len(phrases)


def own_words(requests: Sequence[str]) -> list[frozenset[str]]:
    """For each request, the words that hardly any other has; empty if it is too short to tell."""
    words = [_stems(request) for request in requests]
    seen = Counter(word for each in words for word in each)
    most = 1 + len(requests) // _COMMON
    return [frozenset(word for word in each if seen[word] <= most) for each in words]


def names(reply: str, own: frozenset[str]) -> bool:
    """Whether a reply has any of a request's own words."""
    return bool(_stems(reply) & own)


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _WORD.findall(text)} - _COMMON_STEMS


def _stem(word: str) -> str:
    return word.lower().rstrip("s")[:_STEM]


_COMMON_STEMS = frozenset(map(_stem, _FUNCTION_WORDS.split()))
