"""One arm: a user with a wish, up to 16 conversations, and held-out measurements between them.

An arm has a system of its own, unless it is told that others share it, each with a key of their own.
Everything goes through the public API. What has been logged is not repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, BrokenBarrierError

from openclaw_rl.evals.personalize.talk import ChatReply, ConversationLog, Row, System
from openclaw_rl.evals.wishes.checks import is_degenerate, on_topic
from openclaw_rl.evals.wishes.items import HeldOutItem
from openclaw_rl.evals.wishes.wish import TRAINED, UNSEEN, Request, WishCase, requests
from openclaw_rl.processes.server_process import UNREMINDED, ServerProcess
from openclaw_rl.serve.auth import KeyRing

PRAISE = ("Thanks, that is exactly how I like it.", "Perfect, thank you!", "Great, just what I wanted.")
_AT_ONCE = 8
#: Sampling: the server's defaults for conversations, greedy for checkable items.
_TALK: Row = {"max_tokens": 128}
_EXACT: Row = {"max_tokens": 32, "temperature": 0}


@dataclass(frozen=True, slots=True)
class WishArm:
    wish: WishCase
    seed: int
    second: WishCase | None = None
    """A second wish, introduced once the first is learned."""
    taken_back: str = ""
    """The message that takes the wish back once it is learned, instead of a second wish."""
    together: bool = False
    """Whether other people with other wishes use the same system at the same time."""

    @property
    def story(self) -> str:
        if self.together:
            return "together"
        if self.second is None:
            return "taken-back" if self.taken_back else "alone"
        return "against" if self.second.against == self.wish.name else "second"

    @property
    def turned(self) -> list[WishCase]:
        """The wishes that apply after the change."""
        if self.second is None:
            return []
        return [self.second] if self.second.against == self.wish.name else [self.wish, self.second]

    @property
    def measured(self) -> list[WishCase]:
        return [self.wish, *([self.second] if self.second else [])]

    @property
    def name(self) -> str:
        after = f"-then-{self.second.name}" if self.second else "-taken-back" if self.taken_back else ""
        after = "-together" if self.together else after
        return f"{self.wish.name}{after}-{self.seed}".replace(" ", "-").replace("'", "")


@dataclass(frozen=True, slots=True)
class WishRules:
    conversations: int = 16
    short_look: int = 24
    """Held-out replies measured after each conversation that produced a version."""
    long_look: int = 100
    """Held-out replies measured at the end."""
    flags: tuple[str, ...] = ()
    threads: int = 0
    """CPU threads of the embedded engine and trainer; 0: torch's default. Others ignore it."""
    deadline: float = math.inf
    """On the monotonic clock; arms still running then are finished early."""


class StrictUser:
    """A strict user: praises only replies that meet every wish and are on topic."""

    def __init__(self, system: System, wishes: list[WishCase], seed: int) -> None:
        self.system, self.wishes, self.seed = system, wishes, seed
        self._asks = requests("train", TRAINED, 200, seed)

    def converse(self, number: int, instead: str = "") -> Row:
        """Ask, complain (at most twice), thank. ``instead`` replaces the response to the first reply."""
        request = self._asks[number]
        messages: list[Row] = [{"role": "user", "content": request.text}]
        row: Row = {"number": number, "ask": request.text, "turns": []}
        for attempt in range(3):
            seed = 1000 * self.seed + 10 * number + attempt
            reply = self.system.ask(messages, seed, sampling=_TALK)
            met = all(wish.is_met(reply.text, request) for wish in self.wishes)
            said = instead if instead and not attempt else self._words(reply, request, met, number + attempt)
            row["turns"].append(
                {"id": reply.id, "text": reply.text, "version": reply.version, "met": met, "said": said}
            )
            if attempt == 2 or (attempt and row["turns"][-2]["met"]):
                break
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": said}]
        return row | {"first": row["turns"][0]["met"]}

    def _words(self, reply: ChatReply, request: Request, met: bool, number: int) -> str:
        if met:
            return PRAISE[number % len(PRAISE)]
        missing = [wish for wish in self.wishes if not wish.shows(reply.text)]
        if not missing:
            return "That is not about what I asked."
        return missing[-1].says[number % len(missing[-1].says)]


def run_system(
    arms: Sequence[WishArm],
    out: Path,
    rules: WishRules,
    items: Sequence[HeldOutItem],
    tick: Callable[[], None],
) -> None:
    """Start a server for these arms, and run all of them at the same time to their ends."""
    folders = [out / arm.name for arm in arms]
    if all(ConversationLog(folder / "log.jsonl").of("end") for folder in folders):
        return
    home = folders[0] / "home"
    threads = dict.fromkeys(("OPENCLAW_RL_NUM_THREADS", "OPENCLAW_RL_TRAIN_THREADS"), str(rules.threads))
    with ServerProcess(
        home, "--seed", str(arms[0].seed), *UNREMINDED, *rules.flags, environment=threads
    ) as server:
        ring, meeting = KeyRing(home / "keys.json"), Barrier(len(arms))
        people = ["default", *(arm.name for arm in arms[1:])]
        keys = [ring.key_of(person) or ring.add(person) for person in people]
        with ThreadPoolExecutor(len(arms)) as pool:
            jobs = [
                pool.submit(_run_arm, arm, folder, rules, items, System(server.url, key), tick, meeting)
                for arm, folder, key in zip(arms, folders, keys, strict=True)
            ]
        for job in jobs:
            job.result()


def _run_arm(
    arm: WishArm,
    folder: Path,
    rules: WishRules,
    items: Sequence[HeldOutItem],
    system: System,
    tick: Callable[[], None],
    meeting: Barrier,
) -> None:
    log, started = ConversationLog(folder / "log.jsonl"), time.monotonic()
    with closing(system):
        try:
            _drive(arm, log, rules, system, StrictUser(system, [arm.wish], arm.seed), tick, meeting)
        finally:
            meeting.abort()  # the others need not wait for this one any more
        if log.of("end"):
            return
        _last_look(arm, log, rules, system, items)
        status = system.get("/v1/status")
        policies = system.get("/v1/policies")["data"]
        log.write("end", {"seconds": time.monotonic() - started, "policies": policies, "status": status})


def _drive(
    arm: WishArm,
    log: ConversationLog,
    rules: WishRules,
    system: System,
    person: StrictUser,
    tick: Callable[[], None],
    meeting: Barrier,
) -> None:
    done = len(log.of("conversation"))
    version = log.of("look")[-1]["version"] if log.of("look") else 0
    turned: int | None = next((row["number"] for row in log.of("turned")), None)
    if turned is not None:
        person.wishes = arm.turned
    for number in range(done, rules.conversations):
        if time.monotonic() > rules.deadline:
            break
        instead = ""
        if turned is None and (arm.second or arm.taken_back) and _is_learned(log, rules):
            turned, instead = number, arm.taken_back
            person.wishes = arm.turned
            log.write("turned", {"number": number})
        log.write("conversation", person.converse(number, instead) | {"turned": turned is not None})
        with suppress(BrokenBarrierError):  # nobody measures while another one talks
            meeting.wait()
        system.wait()
        if not log.of("given up") and any(wish["reason"] for wish in system.get("/v1/wishes")["data"]):
            log.write("given up", {"number": number})
        now = _serving(system)
        if now != version:
            version = now
            log.write(
                "look", look(system, arm.measured, rules.short_look) | {"number": number, "version": now}
            )
        tick()


def _is_learned(log: ConversationLog, rules: WishRules) -> bool:
    firsts = [row["first"] for row in log.of("conversation")]
    return firsts[-2:] == [True, True] or len(firsts) >= rules.conversations // 2


def _serving(system: System) -> int:
    serving = [row["version"] for row in system.get("/v1/policies")["data"] if row["status"] == "serving"]
    return int(serving[0]) if serving else 0


def _last_look(
    arm: WishArm, log: ConversationLog, rules: WishRules, system: System, items: Sequence[HeldOutItem]
) -> None:
    log.write("final", look(system, arm.measured, rules.long_look) | {"version": _serving(system)})
    log.write("items", {"right": answer_items(system, items)})


def held_out(number: int) -> list[Request]:
    """Held-out requests, half of them in unseen forms."""
    return [
        *requests("test", TRAINED, number // 2, seed=1),
        *requests("test", UNSEEN, number - number // 2, seed=2),
    ]


def look(system: System, wishes: Sequence[WishCase], number: int, told: str = "", note: str = "") -> Row:
    """Replies to held-out requests, with their form and whether each meets the wishes, is on topic, and is
    not degenerate.

    ``told``: a hint added to each request. ``note``: a system prompt, as memory notes would add.
    """
    before: list[Row] = [{"role": "system", "content": note}] if note else []

    def one(numbered: tuple[int, Request]) -> Row:
        n, request = numbered
        text = f"{request.text}\n\n{told}" if told else request.text
        reply = system.ask([*before, {"role": "user", "content": text}], n, side=True, sampling=_TALK)
        return {
            "form": "trained" if request.form in TRAINED else "unseen",
            "met": [wish.is_met(reply.text, request) for wish in wishes],
            "shows": [wish.shows(reply.text) for wish in wishes],
            "topic": on_topic(reply.text, request.stems),
            "degenerate": is_degenerate(reply.text),
            "ask": request.text,
            "reply": reply.text,
        }

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {"rows": list(pool.map(one, enumerate(held_out(number))))}


def answer_items(system: System, items: Sequence[HeldOutItem], told: str = "") -> list[bool]:
    """Whether each checkable item is answered correctly; ``told`` is added to items that are not bound."""

    def one(item: HeldOutItem) -> bool:
        messages = [dict(message) for message in item.messages]
        if told and not item.bound:
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{told}"
        return item.is_right(system.ask(messages, 0, side=True, sampling=_EXACT).text)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, items))
