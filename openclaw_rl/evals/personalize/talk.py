"""Conversations of a simulated user with a running system, through its chat API."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from openclaw_rl.evals.personalize.tasks import ChatTask
from openclaw_rl.evals.personalize.users import MOVES_ON, WRONG, User, Voice, own_words

Row = dict[str, Any]
MAX_TOKENS = 128
TEMPERATURE = 0.5
ATTEMPTS = 3
SILENT, LEAVES_IT, CHATS_ON = 0.1, 0.1, 0.2
"""Probabilities that a user leaves silently, drops the matter after a retry, or moves on to another task."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    id: str
    text: str
    version: int
    prompt_tokens: int
    completion_tokens: int


class System:
    """A running OpenClaw-RL, as one of its users sees it."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=600, limits=httpx.Limits()
        )

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        messages: Sequence[Row],
        seed: int,
        *,
        side: bool = False,
        tools: Sequence[Row] = (),
        sampling: Row | None = None,
    ) -> ChatReply:
        """``side``: a measurement request, which the system must not learn from."""
        body: Row = {"model": "default", "messages": list(messages), "seed": seed}
        body |= {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS} if sampling is None else sampling
        if tools:
            body |= {"tools": list(tools), "tool_choice": "required"}
        answer = self._http.post(
            "/v1/chat/completions", json=body, headers={"x-turn-type": "side"} if side else {}
        )
        if answer.status_code != 200:
            raise ValueError(f"the system answered {answer.status_code}: {answer.text[:300]}")
        said = answer.json()
        message, usage = said["choices"][0]["message"], said["usage"]
        calls = "".join(
            json.dumps(json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or ()
        )
        return ChatReply(
            id=said["id"],
            text=calls or message["content"] or "",
            version=int(answer.headers["x-policy-version"]),
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )

    def get(self, path: str) -> Row:
        answer = self._http.get(path)
        answer.raise_for_status()
        found: Row = answer.json()
        return found

    def flush(self) -> None:
        self._http.post("/v1/flush").raise_for_status()

    def wait(self, timeout_s: float = 900) -> None:
        """Wait until everything so far is judged, and trained on where there is enough for a step."""
        end, quiet = time.monotonic() + timeout_s, 0
        while quiet < 3:
            if time.monotonic() > end:
                raise TimeoutError(f"the system was still busy after {timeout_s:.0f} s; see its log")
            time.sleep(0.3)
            quiet = 0 if self.get("/v1/status")["busy"] else quiet + 1


@dataclass(slots=True)
class SimulatedUser:
    """A user with their wishes so far, their system, and their memory notes if the method uses them."""

    name: str
    wishes: list[User]
    system: System
    seed: int
    takes_notes: bool = False
    voice: Voice = own_words
    notes: list[str] = field(default_factory=list)
    tasks: Iterator[ChatTask] = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = self.wishes[0].tasks("train", self.seed)

    def likes(self, reply: str) -> bool:
        return all(wish.likes(reply) for wish in self.wishes)

    def start(self, task: ChatTask) -> list[Row]:
        said = [{"role": "user", "content": task.text}]
        if not self.notes:
            return said
        note = "Keep to what the user asked for before: " + " ".join(self.notes)
        return [{"role": "system", "content": note}, *said]

    def converse(self, number: int) -> Row:
        """Ask, complain until the reply is right, then thank or leave. Only the first reply counts."""
        chance = random.Random(f"{self.seed}-{self.name}-{number}")
        task = next(self.tasks)
        messages = self.start(task)
        row: Row = {"user": self.name, "number": number, "task": task.kind, "ask": task.text, "turns": []}
        for attempt in range(ATTEMPTS):
            reply = self.system.ask(messages, seed=chance.randrange(1 << 30))
            liked, answered = self.likes(reply.text), task.is_answered_by(reply.text)
            said, truth = self._react(chance, reply, task, liked, answered, attempt)
            row["turns"].append(
                asdict(reply) | {"liked": liked, "answered": answered, "said": said, "truth": truth}
            )
            if said is None:
                break
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": said}]
            if truth >= 0:
                closing = self.system.ask(messages, seed=chance.randrange(1 << 30))
                row["turns"].append(asdict(closing) | {"said": None, "truth": None})
                break
        first = row["turns"][0]
        return row | {"published": first["liked"], "strict": first["liked"] and first["answered"]}

    def _react(
        self,
        chance: random.Random,
        reply: ChatReply,
        task: ChatTask,
        liked: bool,
        answered: bool,
        attempt: int,
    ) -> tuple[str | None, int]:
        """The user's next message (None: none), and what they really think: 1, 0 or -1."""
        if chance.random() < SILENT:
            return None, 0
        if attempt == ATTEMPTS - 1 and not (liked and answered):
            return None, -1  # gives up
        if liked and answered:
            meant, truth = self.wishes[-1].praise(chance), 1
            if chance.random() < CHATS_ON:
                meant, truth = chance.choice(MOVES_ON).format(next(self.tasks).text), 0
        elif attempt and chance.random() < LEAVES_IT:
            meant, truth = chance.choice(MOVES_ON).format(next(self.tasks).text), 0
        else:
            missing = [wish for wish in self.wishes if not wish.likes(reply.text)]
            meant, truth = (missing[-1].complaint(chance) if missing else chance.choice(WRONG)), -1
            if self.takes_notes and missing and meant not in self.notes:
                self.notes = [*self.notes, meant][-3:]
        return (meant if truth == 0 else self.voice(meant, task.text, reply.text)), truth

    def examine(self, tasks: Sequence[ChatTask], seed: int) -> list[Row]:
        """Ask held-out tasks, several at once; the system does not learn from them."""

        def one(numbered: tuple[int, ChatTask]) -> Row:
            number, task = numbered
            reply = self.system.ask(self.start(task), seed=seed + number, side=True, tools=task.tools)
            likes = [wish.likes(reply.text) for wish in self.wishes]
            return {
                "kind": task.kind, "ask": task.text, "reply": reply.text, "version": reply.version,
                "answered": task.is_answered_by(reply.text), "liked": all(likes), "wishes": likes,
                "prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens,
            }  # fmt: skip

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(one, enumerate(tasks)))


def at_once(calls: Sequence[Callable[[], Row]]) -> list[Row]:
    """Run the calls in parallel: all users talk at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class ConversationLog:
    """Append-only JSONL; what has been logged is not repeated."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.rows: list[Row] = []
        if path.exists():
            *lines, torn = path.read_text(encoding="utf-8").split("\n")
            self.rows = [json.loads(line) for line in lines]
            if torn:  # the writer was killed in the middle of a line
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write(self, kind: str, row: Row) -> None:
        row = {"type": kind, **row}
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            self.rows.append(row)

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["type"] == kind]
