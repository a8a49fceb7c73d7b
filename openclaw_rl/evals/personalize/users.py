"""Simulated users. Each has a wish, states it in words, and gives no ratings.

A user is a small TOML file (``users/*.toml`` are the built-in ones) or a custom class with the same methods.
Only the evaluation knows what a user really thinks; the system sees their messages.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from openclaw_rl.evals.personalize.tasks import ChatTask, Part, deal, draw, own_tasks
from openclaw_rl.plugins import load_object

_BUILT_IN = Path(__file__).parent / "users"
_CHECKS = ("max_words", "min_words", "matches", "not_matches", "starts_with")
_KEYS = ("name", "wish", "asks", "kinds", "complains", "thanks", "check")

WRONG = (
    "That does not answer my question.",
    "No, that is not what I asked. Please answer the question.",
    "That is wrong. Please try again.",
)
MOVES_ON = ("Okay. Something else: {}", "Let's leave that. {}", "By the way: {}")


class Voice(Protocol):
    """Phrases what a user means to say."""

    def __call__(self, meant: str, ask: str, reply: str) -> str: ...


def own_words(meant: str, ask: str, reply: str) -> str:
    """The template unchanged."""
    return meant


class User(Protocol):
    """What an evaluation needs of a user; a custom class implements this."""

    @property
    def name(self) -> str: ...

    def tasks(self, part: Part, seed: int) -> Iterator[ChatTask]:
        """The user's tasks, an endless iterator."""

    def likes(self, reply: str) -> bool:
        """Whether the reply meets the wish. (Whether it answers the request is checked by the task.)"""

    def complaint(self, chance: random.Random) -> str:
        """The user's message about a reply they do not like."""

    def praise(self, chance: random.Random) -> str:
        """The user's message about a reply they like."""


@dataclass(frozen=True, slots=True)
class FileUser:
    """A user read from TOML."""

    name: str
    complains: Sequence[str]
    thanks: Sequence[str]
    check: Mapping[str, Any]
    asks: Sequence[str] = ()
    kinds: Sequence[str] = ("question",)
    wish: str = ""

    def tasks(self, part: Part, seed: int) -> Iterator[ChatTask]:
        if self.asks:
            return deal(own_tasks(self.asks), part, f"{seed}-{self.name}")
        return draw(self.kinds, part, seed)

    def likes(self, reply: str) -> bool:
        text, words = reply.strip(), len(reply.split())
        check = self.check
        flags = re.IGNORECASE | re.MULTILINE
        return (
            0 < words <= check.get("max_words", words)
            and words >= check.get("min_words", 0)
            and ("matches" not in check or bool(re.search(check["matches"], text, flags)))
            and ("not_matches" not in check or not re.search(check["not_matches"], text, flags))
            and text.lower().startswith(check.get("starts_with", "").lower())
        )

    def complaint(self, chance: random.Random) -> str:
        return chance.choice(self.complains)

    def praise(self, chance: random.Random) -> str:
        return chance.choice(self.thanks)


class EndpointVoice:
    """A language model behind any OpenAI-compatible API rephrases the message."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=120)
        self._model = model

    def __call__(self, meant: str, ask: str, reply: str) -> str:
        prompt = (
            "You play somebody chatting with an assistant. Write their next message and nothing else: at "
            "most two sentences, everyday language, no rating, no quotation marks.\n\n"
            f"They asked: {ask}\nThe assistant said: {reply[:1500]}\nWhat they mean to say: {meant}"
        )
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 80}
        answer = self._http.post("/chat/completions", json=body)
        if answer.status_code != 200:
            raise ValueError(
                f"the simulated user's endpoint answered {answer.status_code}: {answer.text[:200]}"
            )
        return str(answer.json()["choices"][0]["message"]["content"]).strip() or meant


def built_in() -> list[str]:
    return sorted(path.stem for path in _BUILT_IN.glob("*.toml"))


def load_user(what: str) -> User:
    """A built-in name, a TOML file, or ``pkg.module:Class``."""
    if what in built_in():
        return read_user(_BUILT_IN / f"{what}.toml")
    if what.endswith(".toml"):
        return read_user(Path(what))
    if ":" in what:
        user: User = load_object("user", what)()
        return user
    raise ValueError(
        f"unknown user {what!r}; built in: {', '.join(built_in())}; or FILE.toml, or pkg.module:Class"
    )


def read_user(path: Path) -> FileUser:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"cannot read the user {path}: {error}") from None
    strange = [key for key in table if key not in _KEYS]
    strange += [f"check.{key}" for key in table.get("check", {}) if key not in _CHECKS]
    if strange:
        raise ValueError(
            f"{path}: unknown {', '.join(strange)}; known: {', '.join(_KEYS)}; check.{', '.join(_CHECKS)}"
        )
    missing = [key for key in ("name", "complains", "thanks", "check") if not table.get(key)]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} is missing")
    for key in ("matches", "not_matches"):
        try:
            re.compile(table["check"].get(key, ""))
        except re.error as error:
            raise ValueError(f"{path}: check.{key} is no regular expression: {error}") from None
    return FileUser(**table)
