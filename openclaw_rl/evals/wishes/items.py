"""Questions with one right answer, made from tables: facts, sums, reading, and jobs with a system prompt.

A plain item is asked like any chat request, so a wish applies to it. A ``bound`` item has a system prompt
that says exactly how to answer, which no wish from a chat should affect. Only items that the untrained
model answers correctly are counted.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from openclaw_rl.types import Message

_CAPITALS = (
    "France Paris|Italy Rome|Spain Madrid|Germany Berlin|Portugal Lisbon|Greece Athens|Austria Vienna|"
    "Norway Oslo|Sweden Stockholm|Poland Warsaw|Hungary Budapest|Ireland Dublin|Russia Moscow|Egypt Cairo|"
    "China Beijing|India Delhi|Cuba Havana|Peru Lima|Canada Ottawa|Kenya Nairobi|Iran Tehran|Iraq Baghdad|"
    "Turkey Ankara|Thailand Bangkok|Vietnam Hanoi|Denmark Copenhagen|Finland Helsinki|Belgium Brussels|"
    "Argentina Buenos|Chile Santiago|Colombia Bogot|Ukraine Kyiv|Romania Bucharest|Bulgaria Sofia|"
    "Australia Canberra|Indonesia Jakarta|Philippines Manila|Nepal Kathmandu|Lebanon Beirut|Ethiopia Addis"
)
_OPPOSITES = (
    "hot cold|big small|up down|left right|day night|happy sad|fast slow|old new|open closed|wet dry|"
    "light dark|full empty|hard soft|early late|strong weak|rich poor|high low|long short|good bad|win lose"
)
_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Karin", "Leo",
    "Maria", "Nick", "Olga", "Paul",
)  # fmt: skip
_COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "purple"]
_THINGS = ["car", "hat", "house", "coat", "bag", "boat", "chair", "cup"]
_CITIES = ["London", "Tokyo", "Chicago", "Sydney", "Munich", "Toronto", "Boston", "Naples", "Geneva"]
_JOBS = ["teacher", "doctor", "farmer", "baker", "nurse", "pilot", "lawyer", "painter"]


@dataclass(frozen=True, slots=True)
class HeldOutItem:
    messages: list[Message]
    answer: str
    bound: bool
    """A system prompt says how to answer."""

    def is_right(self, reply: str) -> bool:
        found = re.search(rf"(?<!\w){re.escape(self.answer)}", reply, re.IGNORECASE)
        return found is not None and (not self.bound or len(reply.split()) <= 6)


def _ask(text: str, system: str = "") -> list[Message]:
    told: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*told, {"role": "user", "content": text}]


def _pairs(table: str) -> list[tuple[str, str]]:
    found = [entry.rsplit(" ", 1) for entry in table.split("|")]
    return [(first, second) for first, second in found]


def _plain() -> Iterator[HeldOutItem]:
    for country, city in _pairs(_CAPITALS):
        yield HeldOutItem(_ask(f"What is the capital of {country}?"), city, False)
    for word, opposite in _pairs(_OPPOSITES):
        yield HeldOutItem(_ask(f"What is the opposite of {word}?"), opposite, False)
        yield HeldOutItem(_ask(f"What is the opposite of {opposite}?"), word, False)
    for a, b in itertools.product(range(2, 10), repeat=2):
        yield HeldOutItem(_ask(f"What is {a} plus {b}?"), str(a + b), False)
    for index, (name, colour) in enumerate(itertools.product(_NAMES, _COLOURS)):
        thing = _THINGS[(index * 3 + index // 8) % len(_THINGS)]
        text = f"{name} has a {colour} {thing}. What colour is the {thing} of {name}?"
        yield HeldOutItem(_ask(text), colour, False)


def _bound() -> Iterator[HeldOutItem]:
    city = "You extract data. Reply with the name of the city in the text and nothing else."
    colour = "Reply with one word only: the colour that is named in the text."
    person = "You are part of a program. Output only the first name that occurs in the text."
    job = "Output the profession in the text. Only that word."
    for index, (name, place) in enumerate(itertools.product(_NAMES, _CITIES)):
        work, shade = _JOBS[index % len(_JOBS)], _COLOURS[(index // 3) % len(_COLOURS)]
        yield HeldOutItem(_ask(f"{name} moved to {place} two years ago.", city), place, True)
        yield HeldOutItem(_ask(f"The {_THINGS[index % len(_THINGS)]} is {shade}.", colour), shade, True)
        yield HeldOutItem(_ask(f"Yesterday {name} went to {place} by train.", person), name, True)
        yield HeldOutItem(_ask(f"{name} works as a {work}.", job), work, True)


def items(number: int, seed: int = 0) -> list[HeldOutItem]:
    """Half plain, half bound, alternating, in a shuffled order."""
    chosen = []
    for made in (_plain(), _bound()):
        unique = {str(item.messages): item for item in made}
        every = sorted(unique)
        random.Random(seed).shuffle(every)
        chosen.append([unique[key] for key in every[: number // 2]])
    return [item for pair in zip(*chosen, strict=False) for item in pair]
