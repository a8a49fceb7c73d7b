"""Wishes, from a file or drawn from a grammar, and the requests of simulated users."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from openclaw_rl.evals.wishes.checks import has_wish, is_degenerate, on_topic

#: Request forms for conversations, and forms only for measuring. The learner's own requests use neither.
TRAINED = ("Tell me about {}.", "What should I know about {}?")
UNSEEN = (
    "Why do people care about {}?",
    "Can you explain {} to me?",
    "I have never seen {} up close. What is there to know?",
    "My teacher asked us to talk about {} tomorrow. What can I say?",
)


@dataclass(frozen=True, slots=True)
class Request:
    text: str
    stems: tuple[str, ...]
    form: str


@dataclass(frozen=True, slots=True)
class WishCase:
    name: str
    kind: str
    says: tuple[str, ...]
    """The user's messages, used in turn."""
    checks: dict[str, Any] = field(hash=False)
    against: str | None = None
    """The name of a wish that this one contradicts."""

    def is_met(self, reply: str, request: Request) -> bool:
        """Whether the reply shows the wish, is on topic, and is not degenerate."""
        return self.shows(reply) and on_topic(reply, request.stems) and not is_degenerate(reply)

    def shows(self, reply: str) -> bool:
        return has_wish(reply, self.checks)


def written() -> dict[str, WishCase]:
    """The wishes in ``wishes.toml``."""
    table = tomllib.loads(_read("wishes.toml"))
    return {
        name: WishCase(name, entry["kind"], tuple(entry["says"]), entry["checks"], entry.get("against"))
        for name, entry in table.items()
    }


def requests(use: str, forms: Sequence[str], number: int, seed: int = 0) -> list[Request]:
    """``use``: ``train`` or ``test``; the two share no topics."""
    lines = [line for line in _read("topics.txt").splitlines() if line and not line.startswith("#")]
    topics = [line.partition(": ") for line in lines[use == "test" :: 2]]
    random.Random(seed).shuffle(topics)
    made = []
    for n in range(number):
        topic, _, stems = topics[n % len(topics)]
        form = forms[(n + n // len(topics)) % len(forms)]
        made.append(Request(form.format(topic), tuple(stems.split(", ")), form))
    return made


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


# --- a grammar of wishes ---------------------------------------------------------------------

_OPENINGS = ("Well now", "Here you go", "Listen", "My friend", "Okay", "As you know", "Interesting topic")
_ENDINGS = ("That is all", "Have a nice day", "Take care", "See you soon", "Now you know")
_TITLES = ("Captain", "Professor", "Champion", "Boss", "Doctor", "Mister")
_LANGUAGES = {
    "German": "de",
    "Italian": "it",
    "Portuguese": "pt",
    "Dutch": "nl",
    "Spanish": "es",
    "French": "fr",
}
_VOICES = {
    "a cowboy": ["howdy", "partner", "reckon", "y'all", "cowboy", "yee", "ain't"],
    "a wizard": ["magic", "spell", "wand", "wizard", "potion", "enchant"],
    "Shakespeare": ["thou", "thee", "thy", "hath", "doth", "art ", "shakespeare"],
    "a kind grandmother": ["dear", "sweet", "honey", "grandm", "darling", "my child"],
    "a detective": ["case", "clue", "mystery", "detective", "suspect", "investigat"],
}
_COMPARED = {
    "an animal": ["like a", "animal", "lion", "bird", "dog", "elephant", "fish", "cat"],
    "the weather": ["weather", "sun", "rain", "storm", "wind", "cloud"],
    "sports": ["sport", "game", "team", "ball", "player", "race"],
}


def drawn(seed: str, number: int) -> list[WishCase]:
    """Randomly drawn wishes, alternating between kinds; the same seed gives the same wishes."""
    chance = random.Random(seed)
    kinds = list(_GRAMMAR)
    chance.shuffle(kinds)
    made: dict[str, WishCase] = {}
    n = 0
    while len(made) < number:
        kind = kinds[n % len(kinds)]
        name, says, checks = _GRAMMAR[kind](chance)
        made.setdefault(name, WishCase(name, kind, tuple(says), checks))
        n += 1
    return list(made.values())


def _opening(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(_OPENINGS)
    says = [f"Please begin every answer with the words {said}.", f"You did not begin with {said}."]
    return f"opening-{said}", says, {"starts": said}


def _ending(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(_ENDINGS)
    says = [f"Please end every answer with the words {said}.", f"I want you to end with {said}."]
    return f"ending-{said}", says, {"ends": said}


def _title(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(_TITLES)
    return (
        f"title-{said}",
        [f"Please call me {said}.", f"Call me {said} when you answer."],
        {"mentions": [said]},
    )


def _language(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(list(_LANGUAGES))
    says = [f"Please answer in {said}.", f"Not in English. In {said}, please."]
    return f"language-{said}", says, {"language": _LANGUAGES[said]}


def _voice(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(list(_VOICES))
    says = [f"Please talk like {said}.", f"No, say it like {said} would."]
    return f"voice-{said}", says, {"mentions": _VOICES[said]}


def _words(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    number = chance.choice((15, 25, 30, 40))
    says = [f"Too long. Please use at most {number} words.", f"At most {number} words, please."]
    return f"words-{number}", says, {"max_words": number + 2}


def _sentences(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    number, word = chance.choice(((1, "one sentence"), (2, "two sentences"), (3, "three sentences")))
    return (
        f"sentences-{number}",
        [f"Please answer in {word}.", f"Just {word}, please."],
        {"max_sentences": number},
    )


def _layout(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said, checks = chance.choice(
        (("a numbered list", {"numbered": 3}), ("a list of bullet points", {"list": True}))
    )
    return f"layout-{said}", [f"Please answer with {said}.", f"I asked for {said}."], dict(checks)


def _compared(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    said = chance.choice(list(_COMPARED))
    says = [f"Please compare it with {said}.", f"Give me a comparison with {said}."]
    return f"compared-{said}", says, {"mentions": _COMPARED[said]}


def _excited(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    number = chance.choice((1, 2))
    says = ["Please sound enthusiastic, with exclamation marks!", "More enthusiasm! Use exclamation marks!"]
    return f"excited-{number}", says, {"exclamations": number}


def _hard(chance: random.Random) -> tuple[str, list[str], dict[str, Any]]:
    letter, number = chance.choice("aiot"), chance.choice((5, 9, 11))
    return chance.choice(
        (
            (f"without-{letter}", [f"Please do not use the letter {letter}."], {"without_letter": letter}),
            (f"exactly-{number}", [f"Please answer in exactly {number} words."], {"exact_words": number}),
        )
    )


_GRAMMAR = {
    "opening": _opening, "ending": _ending, "address": _title, "language": _language, "persona": _voice,
    "words": _words, "sentences": _sentences, "layout": _layout, "content": _compared, "tone": _excited,
    "hard": _hard,
}  # fmt: skip
