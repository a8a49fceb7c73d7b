"""Tasks of simulated users. Every task can check whether a reply answers it.

Tasks are generated from a seed. The hash of a task's subject decides whether it is used in conversations or
held out, so no conversation contains a held-out task in any wording.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Part = Literal["train", "held_out"]
_WORDINGS = ("{}", "{}", "Quick question: {}", "Tell me: {}")


@dataclass(frozen=True, slots=True)
class ChatTask:
    kind: str
    key: str
    """The subject, independent of the wording."""
    text: str
    answer: str
    """A reply that matches this pattern answers it: correctly where that can be checked, else relevantly."""
    tools: tuple[dict[str, Any], ...] = field(default=())

    @property
    def is_held_out(self) -> bool:
        return hashlib.sha256(self.key.encode()).digest()[0] % 3 == 0

    def is_answered_by(self, reply: str) -> bool:
        return bool(re.search(self.answer, reply, re.IGNORECASE)) and not rambles(reply)


def rambles(reply: str) -> bool:
    """Whether a reply is empty, or repeats the same few words."""
    words = reply.lower().split()
    if not re.search(r"\w", reply):
        return True
    grams = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    return len(grams) >= 12 and len(set(grams)) < 0.5 * len(grams)


def draw(kinds: Sequence[str], part: Part, seed: int) -> Iterator[ChatTask]:
    """Endless tasks, alternating between these kinds; none repeats before all of its kind have been used."""
    decks = [_deck(kind, part, f"{seed}-{kind}") for kind in kinds]
    while True:
        for deck in decks:
            yield next(deck)


def own_tasks(asks: Sequence[str]) -> list[ChatTask]:
    """Tasks from a user's own questions; a reply is relevant if it shares a longer word with the question."""
    return [ChatTask("own", ask, ask, _topic(ask)) for ask in asks]


def deal(tasks: Sequence[ChatTask], part: Part, seed: str) -> Iterator[ChatTask]:
    """The part's tasks, reshuffled each time all have been used."""
    mine = [task for task in tasks if task.is_held_out == (part == "held_out")]
    if not mine:
        raise ValueError(f"no task falls into the {part.replace('_', '-')} part; write more asks (20 or so)")
    chance = random.Random(seed)
    while True:
        yield from chance.sample(mine, len(mine))


def _deck(kind: str, part: Part, seed: str) -> Iterator[ChatTask]:
    try:
        make = KINDS[kind]
    except KeyError:
        raise ValueError(f"unknown kind of task {kind!r}; known: {', '.join(KINDS)}") from None
    for number, task in enumerate(deal(make(), part, seed)):
        wording = random.Random(f"{seed}-{number}").choice(_WORDINGS) if task.kind == "question" else "{}"
        yield ChatTask(task.kind, task.key, wording.format(task.text), task.answer, task.tools)


def _topic(ask: str) -> str:
    words = [word for word in re.findall(r"\w+", ask.lower()) if len(word) > 3 and word not in _COMMON]
    return "|".join(re.escape(word[:5]) for word in words) or r"\w"


_COMMON = frozenset(
    re.findall(
        r"\w+",
        "what when where which does that this with from have about your tell explain please could would "
        "should make some they them",
    )
)


@cache
def questions() -> list[ChatTask]:
    """Open questions; a reply is relevant if it mentions the subject."""
    lines = (Path(__file__).parent / "questions.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" :: ") for line in lines if line and not line.startswith("#")]
    return [ChatTask("question", question, question, f"(?:{about})") for question, about in pairs]


def _questions(first_words: tuple[str, ...]) -> list[ChatTask]:
    return [task for task in questions() if task.text.startswith(first_words)]


_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry")
_COLOURS = ("red", "blue", "green", "yellow", "black", "white")
_THINGS = ("bicycle", "coat", "umbrella", "suitcase", "boat", "lamp", "chair", "hat")
_CITIES = ("Lisbon", "Oslo", "Rome", "Cairo", "Paris", "Madrid", "Vienna", "Tokyo")


@cache
def extraction() -> list[ChatTask]:
    """The answer is in the text."""
    found = []
    for i, name in enumerate(_NAMES):
        for j, thing in enumerate(_THINGS):
            colour, city = _COLOURS[(i + 2 * j) % 6], _CITIES[(3 * i + j) % 8]
            text = f"{name} bought a {colour} {thing} in {city}."
            for about, answer in (
                ("What color is the " + thing, colour),
                ("In which city was it bought", city),
            ):
                found.append(ChatTask("extraction", f"{text} {about}", f"{text} {about}?", rf"\b{answer}\b"))
    return found


@cache
def arithmetic() -> list[ChatTask]:
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    return [
        ChatTask("arithmetic", f"{a}+{b}", f"What is {a} + {b}?", rf"\b{a + b}\b(?! *[+*/=-])")
        for a, b in pairs
    ]


@cache
def word_problems() -> list[ChatTask]:
    found = []
    for i, name in enumerate(_NAMES):
        for a in range(2, 8):
            b, thing = 1 + (a + i) % 4, ("apples", "books", "coins", "eggs")[(a + i) % 4]
            text = f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?"
            found.append(ChatTask("word_problem", text, text, rf"\b{a + b}\b"))
    return found


@cache
def rewriting() -> list[ChatTask]:
    """Polite rewriting: the rewritten sentence must still name the thing."""
    verbs = ("Give me", "Bring me", "Show me", "Hand me", "Find me", "Send me")
    return [
        ChatTask(
            "rewriting", f"{verb} the {thing}", f'Rewrite this politely: "{verb} the {thing}."',
            rf"(?is)(?=.*(?:please|could|would|may i|kindly|can you))(?=.*{thing})",
        )
        for verb in verbs
        for thing in _THINGS
    ]  # fmt: skip


@cache
def tool_calls() -> list[ChatTask]:
    """A call of the only tool, with the right city."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather of a city now", "parameters": parameters},
    }
    asks = ("What is the weather in {}?", "Is it raining in {} now?", "Should I take a coat in {}?")
    return [
        ChatTask("tool_call", f"{ask} {city}", ask.format(city), rf'"city": *"{city}', (tool,))
        for ask in asks
        for city in _CITIES
    ]


KINDS: dict[str, Callable[[], list[ChatTask]]] = {
    "question": questions,
    "what": lambda: _questions(("What",)),
    "how": lambda: _questions(("How", "Explain how")),
    "why": lambda: _questions(("Why",)),
    "extraction": extraction,
    "arithmetic": arithmetic,
    "word_problem": word_problems,
    "rewriting": rewriting,
    "tool_call": tool_calls,
}
