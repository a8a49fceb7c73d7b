"""People who want one short sentence, and what became of their requests; see ``takeover.py``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.evals.wishes.wish import TRAINED, UNSEEN, Request, requests, written

WISH = written()["one-sentence"]
PRAISE = ("Thanks, that is exactly how I like it.", "Perfect, thank you!", "Great, just what I wanted.")


@dataclass
class Conversation:
    at: float
    phase: str
    share: float
    version: int
    """Who answered; -1 is the cloud."""
    met: bool


@dataclass
class Log:
    conversations: list[Conversation] = field(default_factory=list)
    num_requests: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    """Less than now by what earlier runs took."""
    save: Path | None = None
    """Where everything so far is kept, should the run be cut off."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def kept(cls, save: Path | None) -> Log:
        """Goes on where another run stopped."""
        if save is None or not save.exists():
            return cls(save=save)
        saved = json.loads(save.read_text())
        known = {name: saved[name] for name in ("num_requests", "failed", "events")}
        began = time.monotonic() - 60 * saved["minutes"]
        return cls([Conversation(**row) for row in saved["conversations"]], began=began, save=save, **known)

    def requested(self, phase: str, problem: str = "") -> None:
        with self._lock:
            self.num_requests[phase] = self.num_requests.get(phase, 0) + 1
            if problem:
                self.failed.append(f"{phase}: {problem}")

    def add(self, each: Conversation) -> None:
        with self._lock:
            self.conversations.append(each)

    def event(self, what: str, **more: Any) -> None:
        """Something happened after so many conversations."""
        self.events.append({"after": len(self.conversations), "what": what, **more})
        print(
            f"{time.monotonic() - self.began:6.0f} s, {len(self.conversations)} conversations: {what} {more}",
            flush=True,
        )

    def keep(self) -> None:
        if self.save:
            self.save.write_text(json.dumps(self.view()) + "\n")

    def view(self) -> dict[str, Any]:
        return {
            "minutes": (time.monotonic() - self.began) / 60,
            "conversations": [asdict(each) for each in self.conversations],
            "num_requests": self.num_requests,
            "failed": self.failed,
            "events": self.events,
        }


class Failed(Exception):
    """A request got no whole reply."""


class Person:
    """Wants one short sentence about what was asked. Streams, as clients do."""

    def __init__(self, url: str, key: str, number: int, log: Log) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=300)
        self.log, self.number, self.done = log, number, len(log.conversations)
        self._asks = requests("train", TRAINED + UNSEEN, 10_000, seed=number)

    def converse(self, phase: str) -> None:
        asked = self._asks[self.done]
        self.done += 1
        seed = 10_000 * self.number + self.done
        messages = [{"role": "user", "content": asked.text}]
        try:
            text, version = self._ask(phase, messages, 96, seed)
            met = WISH.is_met(text, asked)
            said = self._reaction(text, asked, met)
            more = [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
            share = float(self.http.get("/v1/take-over").json()["share"])
            self.log.add(Conversation(time.monotonic() - self.log.began, phase, share, version, met))
            self._ask(phase, [*messages, *more], 8, seed)
        except Failed:
            pass

    def _reaction(self, text: str, asked: Request, met: bool) -> str:
        if met:
            return PRAISE[self.done % len(PRAISE)]
        if WISH.shows(text):
            return "That is not about what I asked."
        return WISH.says[self.done % len(WISH.says)]

    def _ask(self, phase: str, messages: list[dict[str, str]], max_tokens: int, seed: int) -> tuple[str, int]:
        body = {
            "model": "default",
            "messages": messages,
            "max_tokens": max_tokens,
            "seed": seed,
            "stream": True,
        }
        try:
            text, version = self._stream(body)
        except (Failed, httpx.HTTPError) as problem:
            self.log.requested(phase, f"{type(problem).__name__}: {problem}")
            raise Failed from problem
        self.log.requested(phase)
        return text, version

    def _stream(self, body: dict[str, Any]) -> tuple[str, int]:
        text, finished = "", False
        with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise Failed(f"{answer.status_code} {answer.read()[:200]!r}")
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise Failed(str(chunk["error"]))
                    for choice in chunk["choices"]:
                        text += choice["delta"].get("content") or ""
                        finished = finished or choice["finish_reason"] is not None
        if not finished:
            raise Failed("the stream ended early")
        return text, int(answer.headers["x-policy-version"])


def talk(
    people: list[Person],
    phase: str,
    settled: Callable[[], bool],
    most: int,
    each: int = 3,
    is_late: Callable[[], bool] = lambda: False,
) -> None:
    """Everybody has ``each`` conversations, one after the other; then comes the next round, up to ``most``
    conversations in all. ``settled`` is called between rounds, and says whether there are enough.
    """
    begun = len(people[0].log.conversations)

    def go_on(person: Person) -> None:
        for _ in range(each):
            person.converse(phase)

    while len(people[0].log.conversations) - begun < most and not is_late():
        threads = [threading.Thread(target=go_on, args=(person,)) for person in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if settled():
            return
