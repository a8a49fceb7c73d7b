"""Those who use the server while it is killed, and what it acknowledged to them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.soak.actors import SERVED_NAME, Actor, run_backup, run_prune

#: What may come instead of 200: it is gone (forgotten or pruned), learned from, or cannot be stored now.
ALLOWED = (200, 404, 409, 429, 503)


@dataclass(frozen=True)
class Manners:
    """What suits the model: the scripted one answers and learns at once."""

    num_writers: int = 4
    pause_s: float = 0.0
    """Most seconds that a writer waits between conversations."""
    owner_pause_s: float = 0.3
    idle_s: float = 20.0
    """A conversation that was idle for this long may be pruned."""
    max_tokens: int = 12
    questions: tuple[str, ...] = ("A question",)
    complaints: tuple[str, ...] = ("bad, say less",)
    thanks: str = "good, thanks"


SCRIPTED = Manners()
#: Slow enough that it is judged and learned from between the kills, which a busy engine would put off.
REAL = Manners(
    num_writers=2, pause_s=12.0, owner_pause_s=20.0, idle_s=150.0, max_tokens=60,
    questions=(
        "What is a volcano?", "How does a bicycle stay upright?", "Why is the sky blue?", "What is yeast?",
        "How do I boil an egg?", "What does a judge do?", "Why do leaves fall?", "What is a glacier?",
    ),
    complaints=("Shorter, please. One sentence.", "That is too long. One sentence, please."),
    thanks="Thanks!",
)  # fmt: skip


@dataclass
class Acknowledged:
    """What the server said it has."""

    turns: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Session, and when it was asked."""
    num_tokens: dict[str, int] = field(default_factory=dict)
    """Of each turn, as the reply said."""
    excluded: set[str] = field(default_factory=set)
    rated: set[str] = field(default_factory=set)
    background: dict[str, float] = field(default_factory=dict)
    """When they were asked for."""
    conversations: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the items, in order."""
    keys: dict[str, str] = field(default_factory=dict)
    removed_keys: dict[str, str] = field(default_factory=dict)
    forgetting: set[str] = field(default_factory=set)
    """Sessions of which somebody has asked that they be forgotten, whether or not it was acknowledged."""
    forgotten: set[str] = field(default_factory=set)
    """Turns."""
    pruned_until: float = 0.0
    """Conversations idle since then may be gone."""
    pruning: bool = False
    backups: list[Path] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    commands: threading.Lock = field(default_factory=threading.Lock)
    """Held while a prune or backup runs, and by whoever wants none to run."""
    manners: Manners = SCRIPTED

    def kept(self) -> list[str]:
        """Turns that must be there: neither forgotten nor in a conversation that was idle at a prune."""
        with self.lock:
            last: dict[str, float] = {}
            for session, at in self.turns.values():
                last[session] = max(at, last.get(session, 0.0))
            alive = {s for s, at in last.items() if not self.may_be_pruned(at) and s not in self.forgetting}
            return [turn_id for turn_id, (session, _) in self.turns.items() if session in alive]

    def may_be_pruned(self, at: float) -> bool:
        """What nobody has used since then."""
        return at <= max(self.pruned_until, time.time() - self.manners.idle_s if self.pruning else 0.0)

    def open_sessions(self) -> list[str]:
        with self.lock:
            return list({session for session, _ in self.turns.values()} - self.forgetting)


class Person(threading.Thread):
    """Does one thing after the other until told to stop; a server that is away is waited for."""

    def __init__(self, name: str, seed: str, home: Path, port: int, known: Acknowledged) -> None:
        super().__init__(name=name, daemon=True)
        self.chance, self.home, self.known = random.Random(seed), home, known
        key = json.loads((home / "keys.json").read_text())["default"]
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {key}"}, timeout=60
        )
        self.stopping = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            try:
                self.act(number)
            except (httpx.TransportError, OSError):
                self.stopping.wait(0.05)
            except Exception as error:
                self.failure = error
                return
        self.http.close()

    def act(self, number: int) -> None:
        raise NotImplementedError

    def count(self, what: str) -> None:
        with self.known.lock:
            self.known.done[what] += 1


class Writer(Person):
    """Talks, complains, rates and excludes; uses conversations and background replies too."""

    def act(self, number: int) -> None:
        what = self.chance.choice(("chat", "chat", "conversation", "background"))
        getattr(self, f"_{what}")(f"{self.name}, {number}")
        self.stopping.wait(self.chance.uniform(0, self.known.manners.pause_s))

    def _question(self, name: str) -> str:
        """No log may contain its last words."""
        return f"{self.chance.choice(self.known.manners.questions)} (question of {name})"

    def _complaint(self) -> str:
        return self.chance.choice(self.known.manners.complaints)

    def _chat(self, name: str) -> None:
        said = [{"role": "user", "content": self._question(name)}]
        first, reply = self._ask(said)
        reaction = self.chance.choice((self._complaint(), self.known.manners.thanks))
        self._ask([*said, {"role": "assistant", "content": reply}, {"role": "user", "content": reaction}])
        what = self.chance.random()
        if what < 0.3:
            answer = self.http.post("/v1/feedback", json={"id": first, "rating": "down"})
            self._note(answer, self.known.rated, first)
        elif what < 0.5:
            self._note(self.http.post(f"/v1/turns/{first}/exclude"), self.known.excluded, first)

    def _ask(self, messages: list[dict[str, str]]) -> tuple[str, str]:
        """The turn's id and the reply."""
        body = {"model": SERVED_NAME, "messages": messages, "max_tokens": self.known.manners.max_tokens}
        began = time.time()
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        self._has(answer, began, reply["usage"]["completion_tokens"])
        return reply["id"], reply["choices"][0]["message"]["content"]

    def _has(self, answer: httpx.Response, began: float, num_tokens: int) -> None:
        turn_id: str = answer.json()["id"]
        with self.known.lock:
            self.known.num_tokens[turn_id] = num_tokens
            self.known.turns[turn_id] = answer.headers["x-session-id"], began

    def _note(self, answer: httpx.Response, known: set[str], turn_id: str) -> None:
        assert answer.status_code in ALLOWED, answer.text
        if answer.status_code == 200:
            with self.known.lock:
                known.add(turn_id)

    def _conversation(self, name: str) -> None:
        conversation = self.http.post("/v1/conversations", json={}).raise_for_status().json()["id"]
        items: list[str] = []
        for text in (self._question(name), self._complaint()):
            body, began = self._response(text, conversation=conversation), time.time()
            answer = self.http.post("/v1/responses", json=body)
            if answer.status_code == 404:  # pruned or forgotten meanwhile
                return
            assert answer.status_code == 200, answer.text
            self._has(answer, began, answer.json()["usage"]["output_tokens"])
            items += [item["id"] for item in answer.json()["output"]]
            with self.known.lock:
                self.known.conversations[conversation] = list(items)
        self.count("conversation")

    def _response(self, text: str, **fields: object) -> dict[str, object]:
        return {
            "model": SERVED_NAME,
            "input": text,
            "max_output_tokens": self.known.manners.max_tokens,
            **fields,
        }

    def _background(self, name: str) -> None:
        body, began = self._response(self._question(name), background=True), time.time()
        answer = self.http.post("/v1/responses", json=body)
        assert answer.status_code in ALLOWED, answer.text
        if answer.status_code != 200:
            return
        response_id = answer.json()["id"]
        with self.known.lock:
            self.known.background[response_id] = began
        if self.chance.random() < 0.2:
            assert self.http.post(f"/v1/responses/{response_id}/cancel").status_code in ALLOWED
        self.count("background")


class Owner(Person):
    """Forgets, promotes, flushes, manages people; prunes and backs up in processes of their own."""

    def __init__(self, name: str, seed: str, home: Path, port: int, known: Acknowledged) -> None:
        super().__init__(name, seed, home, port, known)
        self.command: Actor | None = None
        self._log = home.parent / "command.log"

    def act(self, number: int) -> None:
        jobs = ("forget", "promote", "flush", "add_key", "remove_key", "prune", "back_up")
        what = self.chance.choice(jobs)
        if getattr(self, f"_{what}")(number):
            self.count(what)
        self.stopping.wait(self.chance.uniform(0, self.known.manners.owner_pause_s))

    def _forget(self, number: int) -> bool:
        if len(sessions := self.known.open_sessions()) < 5:
            return False
        session = self.chance.choice(sessions)
        with self.known.lock:
            self.known.forgetting.add(session)
        answer = self.http.delete(f"/v1/sessions/{session}")
        assert answer.status_code in (200, 404), answer.text
        if answer.status_code == 404:  # pruned: its words are gone, its scores stay
            return False
        with self.known.lock:
            gone = {turn_id for turn_id, (its, _) in self.known.turns.items() if its == session}
            self.known.forgotten |= gone
        return True

    def _promote(self, number: int) -> bool:
        rows = self.http.get("/v1/policies").raise_for_status().json()["data"]
        version = self.chance.choice([row["version"] for row in rows])
        answer = self.http.post(f"/v1/policies/{version}/promote")
        assert answer.status_code in (200, 400, 404, 409), answer.text
        return answer.status_code == 200

    def _flush(self, number: int) -> bool:
        answer = self.http.post("/v1/flush")
        assert answer.status_code in (200, 503), answer.text
        return True

    def _add_key(self, number: int) -> bool:
        answer = self.http.post("/v1/users", json={"name": (name := f"person{number}")})
        assert answer.status_code == 200, answer.text
        with self.known.lock:
            self.known.keys[name] = answer.json()["key"]
        return True

    def _remove_key(self, number: int) -> bool:
        with self.known.lock:
            names = sorted(self.known.keys)
            if not names:
                return False
            name = self.chance.choice(names)
            key = self.known.keys.pop(name)
        answer = self.http.delete(f"/v1/users/{name}/key")
        assert answer.status_code in (200, 404), answer.text
        with self.known.lock:
            self.known.removed_keys[name] = key
        return True

    def _prune(self, number: int) -> bool:
        with self.known.commands:
            with self.known.lock:
                self.known.pruning = True
            done = self._run(Actor(self._log, run_prune, self.home, self.known.manners.idle_s))
            with self.known.lock:
                self.known.pruning, self.known.pruned_until = False, time.time() - self.known.manners.idle_s
        return done

    def _back_up(self, number: int) -> bool:
        file = self.home.parent / f"backup{number}.tgz"
        with self.known.commands:
            if not self._run(Actor(self._log, run_backup, self.home, file)):
                return False
        with self.known.lock:
            for old in self.known.backups:
                old.unlink(missing_ok=True)
            self.known.backups = [file]
        return True

    def _run(self, actor: Actor) -> bool:
        """False if it was killed."""
        self.command = actor.start()
        done = actor.finish(600)
        self.command = None
        return done
