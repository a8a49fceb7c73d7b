"""One arm of the evaluation: one system, its users, one seed. All its results are in its log.

An arm can be interrupted at any point: the system's data folder and the log are durable, and it resumes with
the session after the last one logged. A finished arm resumes if the session limit is raised.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import httpx

from openclaw_rl.evals.personalize.talk import ConversationLog, Row, SimulatedUser, System, at_once
from openclaw_rl.evals.personalize.tasks import ChatTask, draw
from openclaw_rl.evals.personalize.users import Voice, load_user, own_words
from openclaw_rl.processes.server_process import UNREMINDED, ServerProcess
from openclaw_rl.serve.auth import KeyRing

UNTRAINED, MEMORY = "untrained", "memory"
IN_A_ROW = 3
PROBES = {"extraction": 12, "arithmetic": 8, "word_problem": 6, "rewriting": 6, "tool_call": 8}
CHECKPOINTS = (0, 5, 10, 15, 20, 30, 40, 50, 60, 72)


@dataclass(frozen=True, slots=True)
class PersonalizeArm:
    method: str
    """An algorithm's name, ``untrained``, or ``memory``."""
    users: tuple[str, ...]
    seed: int
    then: str | None = None
    """A second wish, introduced once the first is learned."""

    @property
    def name(self) -> str:
        users = "+".join(Path(user).stem.replace(":", "-") for user in self.users)
        after = f"-then-{Path(self.then).stem}" if self.then else ""
        return f"{self.method}-{users}{after}-{self.seed}"

    @property
    def learns(self) -> bool:
        return self.method not in (UNTRAINED, MEMORY)


@dataclass(frozen=True, slots=True)
class PersonalizeRules:
    limit: int = 72
    """Most sessions per user."""
    held_out: int = 24
    """Held-out tasks per user and measurement."""
    probes: int = 12
    """Most probe tasks of each kind; no session is about them."""
    hold: int = 5
    """Further sessions after three successes in a row, to see whether the result holds."""
    deadline: float = math.inf
    """On the monotonic clock; arms still running then are finished early."""
    flags: tuple[str, ...] = ()
    """Additional flags for ``openclaw-rl serve``."""
    voice: Voice = own_words
    running: tuple[str, dict[str, str]] | None = None
    """The URL of a system that is already running, and its keys by user."""


def is_over(arm: PersonalizeArm, folder: Path, rules: PersonalizeRules) -> bool:
    """Whether the arm has finished, and would also be finished under these rules."""
    log = ConversationLog(folder / "log.jsonl")
    if not log.of("end") or arm.then:
        return bool(log.of("end"))
    return _done(log) >= rules.limit or _finished(log, rules, two=False)


def run_arm(arm: PersonalizeArm, folder: Path, rules: PersonalizeRules, tick: Callable[[int], None]) -> None:
    """Start the arm's own server in ``folder`` and run the arm to its end."""
    if is_over(arm, folder, rules):
        tick(rules.limit)
        return
    log = ConversationLog(folder / "log.jsonl")
    with ExitStack() as stack:
        how = ["--algo", arm.method, "--seed", str(arm.seed)] if arm.learns else ["--no-learn"]
        url, keys = rules.running or stack.enter_context(system_for([arm], folder / "home", rules, how))

        def system(user: str) -> System:
            return stack.enter_context(closing(System(url, keys.get(user) or keys["default"])))

        persons = [
            SimulatedUser(
                name=user.name,
                wishes=[user],
                system=system(user.name),
                seed=1000 * arm.seed,
                takes_notes=arm.method == MEMORY,
                voice=rules.voice,
            )
            for user in map(load_user, arm.users)
        ]
        try:
            drive(arm, log, rules, system("default"), persons, tick)
        except httpx.TransportError as error:
            raise ValueError(f"the system stopped answering ({error}); see {folder / 'home.log'}") from error


@contextmanager
def system_for(
    arms: Sequence[PersonalizeArm], home: Path, rules: PersonalizeRules, flags: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server with a key for each of the arms' users; yields its URL and the keys."""
    ring = KeyRing(home / "keys.json")
    for user in map(load_user, {user for arm in arms for user in arm.users}):
        if user.name not in ring.users:
            ring.add(user.name)
    with ServerProcess(home, *UNREMINDED, *flags, *rules.flags) as server:
        yield server.url, {user: ring.key_of(user) or "" for user in ring.users}


def drive(
    arm: PersonalizeArm,
    log: ConversationLog,
    rules: PersonalizeRules,
    owner: System,
    persons: Sequence[SimulatedUser],
    tick: Callable[[int], None],
) -> None:
    """Run the sessions, the held-out measurements between them, and the final one."""
    started = time.monotonic()
    done = _done(log)
    _catch_up(log, persons, done)
    tick(done)
    second = load_user(arm.then) if arm.then else None
    for number in range(done, rules.limit + 1):
        if second and all(len(p.wishes) == 1 for p in persons) and _learned(log, persons, rules.limit // 2):
            _look(log, owner, persons, number, rules, probes=False, stage="first learned")
            for person in persons:
                person.wishes.append(second)
            log.write("second wish", {"number": number})
        if number == rules.limit or (number and time.monotonic() > rules.deadline):
            break
        if _finished(log, rules, two=second is not None):
            break
        if number in CHECKPOINTS:
            _look(log, owner, persons, number, rules, probes=number == 0)
        rows = at_once([partial(person.converse, number) for person in persons])
        for row in rows:
            log.write("session", row | {"second": len(persons[0].wishes) > 1})
        if arm.learns:
            owner.wait()
        tick(1)
    number = _done(log)
    if arm.learns:
        owner.flush()
        owner.wait()
    _look(log, owner, persons, number, rules, probes=True)
    _settle(arm, log, owner, persons, time.monotonic() - started)
    tick(rules.limit - number)


def _look(
    log: ConversationLog,
    owner: System,
    persons: Sequence[SimulatedUser],
    number: int,
    rules: PersonalizeRules,
    *,
    probes: bool,
    stage: str = "",
) -> None:
    there = {(row["number"], row["user"], row["stage"]) for row in log.of("held_out")}
    for person in persons:
        if (number, person.name, stage) in there:
            continue
        tasks = list(islice(person.wishes[0].tasks("held_out", 0), rules.held_out))
        rows = person.examine(tasks, seed=7)
        log.write("held_out", {"number": number, "user": person.name, "stage": stage, "rows": rows})
    if probes and number not in {row["number"] for row in log.of("probes")}:
        rows = persons[0].examine(probe_tasks(rules.probes), seed=11)
        log.write("probes", {"number": number, "rows": rows})


def probe_tasks(most: int) -> list[ChatTask]:
    """Checkable tasks that no session is about, to see whether the model still solves what it did before."""
    decks = [(draw([kind], "held_out", 1), min(count, most)) for kind, count in PROBES.items()]
    return [task for deck, count in decks for task in islice(deck, count)]


def _settle(
    arm: PersonalizeArm, log: ConversationLog, owner: System, persons: Sequence[SimulatedUser], seconds: float
) -> None:
    """Log the system's own status, and its judge's verdicts next to what the users really thought."""
    verdicts = []
    if arm.learns:
        for row in log.of("session"):
            person = next(person for person in persons if person.name == row["user"])
            for turn in row["turns"]:
                if turn["truth"] is None or turn["said"] is None:
                    continue
                found = person.system.get(f"/v1/turns/{turn['id']}")
                score = (found.get("verdict") or {}).get("score")
                verdicts.append(
                    {"id": turn["id"], "truth": turn["truth"], "score": score, "said": turn["said"]}
                )
    log.write(
        "end",
        {
            "seconds": seconds + sum(row["seconds"] for row in log.of("end")[-1:]),
            "verdicts": verdicts,
            "policies": owner.get("/v1/policies")["data"] if arm.learns else [],
            "status": owner.get("/v1/status"),
        },
    )


def _catch_up(log: ConversationLog, persons: Sequence[SimulatedUser], done: int) -> None:
    """After an interruption, restore the tasks used and the notes taken so far."""
    second = bool(log.of("second wish"))
    for person in persons:
        rows = [row for row in log.of("session") if row["user"] == person.name]
        used = sum(1 + sum(t["said"] is not None and t["truth"] == 0 for t in row["turns"]) for row in rows)
        for _ in range(used):
            next(person.tasks)
        for turn in (turn for row in rows for turn in row["turns"]):
            if (
                person.takes_notes
                and turn["truth"] == -1
                and not turn["liked"]
                and turn["said"] not in person.notes
            ):
                person.notes = [*person.notes, turn["said"]][-3:]
    if second and done:
        raise ValueError("an interrupted arm with a second wish starts anew: delete its folder")


def _done(log: ConversationLog) -> int:
    return max((row["number"] + 1 for row in log.of("session")), default=0)


def sessions_until(rows: Sequence[Row], rule: str, times: int = IN_A_ROW) -> int | None:
    """Sessions until ``times`` in a row satisfied ``rule`` with the first reply; None if never."""
    streak = 0
    for count, row in enumerate(sorted(rows, key=lambda row: row["number"]), 1):
        streak = streak + 1 if row[rule] else 0
        if streak == times:
            return count
    return None


def _learned(log: ConversationLog, persons: Sequence[SimulatedUser], at_latest: int) -> bool:
    rows = [row for row in log.of("session") if not row["second"]]
    each = [[row for row in rows if row["user"] == person.name] for person in persons]
    return all(sessions_until(mine, "strict") for mine in each) or len(each[0]) >= at_latest


def _finished(log: ConversationLog, rules: PersonalizeRules, *, two: bool) -> bool:
    users = {row["user"] for row in log.of("session")}
    rows = [row for row in log.of("session") if row["second"] or not two]
    each = [[row for row in rows if row["user"] == user] for user in users]
    reached = [sessions_until(mine, "strict") for mine in each]
    return bool(each) and all(
        count is not None and len(mine) >= count + rules.hold
        for count, mine in zip(reached, each, strict=True)
    )
