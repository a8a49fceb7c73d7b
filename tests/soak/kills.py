"""Serve and learn killed at random while people write, rate, exclude, prune, forget, promote and back up.

    python -m tests.soak.kills --kills 200 --seed 7 --runs 4

makes four runs at once, with the seeds 7 to 10, and prints a line of JSON for each when it is done: kills,
checks, what there was in the end, and what failed. Each run has a folder and a port of its own. After each
kill the processes that live are frozen, and every promise of ``invariants`` is checked. Needs nothing but
Python and this package.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx

from openclaw_rl.testing import byte_tokenizer, wait_until
from tests.soak.actors import Actor, model_folder, run_learn, run_serve
from tests.soak.invariants import check_all, check_backup, check_over_http, is_being_written
from tests.soak.people import REAL, SCRIPTED, Acknowledged, Owner, Person, Writer

#: A kill comes within so many seconds of the last start, before or after the server listens again: of the
#: scripted engine, and of the real model, which loads and trains for longer.
_MOST_S, _MOST_REAL_S = 1.2, 20.0
_KILLS_BOTH, _KILLS_COMMAND, _WAITS_FOR_WRITING = 0.35, 0.5, 0.8
#: So many kills of the real model wait until another step is taken, each for so many seconds at most.
_WAITS_FOR_A_STEP, _STEP_S = 0.4, 120.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Run:
    """``seed`` decides who is killed and when; what the people say between is up to the machine."""

    def __init__(self, folder: Path, seed: int, real: bool = False, trace: Path | None = None) -> None:
        self.seed, self._folder, self._trace = seed, folder, trace
        self.num_kills = self.num_checks = self.num_found = 0
        self.during_steps = self.after_steps = 0
        self.home, self.counted = folder / "home", Counter[str]()
        self.victims = Counter[str]()
        self._known, self._chance = Acknowledged(manners=REAL if real else SCRIPTED), random.Random(seed)
        self._real, self._num_steps = real, 0
        model, port = None if real else model_folder(folder / "model"), free_port()
        self._most_s, self._sampled = (_MOST_REAL_S, None) if real else (_MOST_S, _scripted_reply())
        self.url = f"http://127.0.0.1:{port}"
        self._serve = Actor(folder / "serve.log", run_serve, self.home, model, port).start()
        self._learn = Actor(folder / "learn.log", run_learn, self.home, model).start()
        wait_until(self._listens, "the server listens", 300)
        everybody = (self.home, port, self._known)
        self._owner = Owner("the owner", f"{seed} owner", *everybody)
        self._people: list[Person] = [
            self._owner,
            *(
                Writer(f"writer {n}", f"{seed} {n}", *everybody)
                for n in range(self._known.manners.num_writers)
            ),
        ]

    def go(self, num_kills: int, deadline: float) -> None:
        """Kill so often, or until the deadline; all is checked after each, and over HTTP in the end."""
        for person in self._people:
            person.start()
        try:
            while self.num_kills < num_kills and time.monotonic() < deadline:
                self._kill_once()
                self._leave_trace()
        finally:
            for person in self._people:
                person.stopping.set()
        for person in self._people:
            person.join(600)
        self._has_more_turns_than(0)
        self._finish()

    def _kill_once(self) -> None:
        if self._chance.random() < _WAITS_FOR_WRITING:
            before = len(self._known.turns)
            wait_until(lambda: self._has_more_turns_than(before), "writing goes on", 300)
        if self._real and self._chance.random() < _WAITS_FOR_A_STEP:
            with suppress(AssertionError):
                wait_until(self._has_new_steps, "a step is taken", _STEP_S)
        threading.Event().wait(self._chance.uniform(0, self._most_s))  # not in step with the replies
        victims = {"serve": self._serve, "learn": self._learn}
        command = self._owner.command
        if command is not None and self._chance.random() < _KILLS_COMMAND:
            victims = {"command": command}
        elif self._chance.random() > _KILLS_BOTH:
            del victims["serve" if self._chance.random() < 0.4 else "learn"]
        for name, victim in victims.items():
            self._count(name, victim)
        with self._nothing_moves():
            self._check()
        for name, victim in victims.items():
            if name != "command":
                victim.start()

    def _leave_trace(self) -> None:
        """What there is so far, for whoever waits or ends this before its time."""
        if self._trace is not None:
            (self._trace / f"seed{self.seed}.json").write_text(json.dumps(self.report(None)))

    def keep_logs(self) -> None:
        if self._trace is not None:
            for log in ("serve.log", "learn.log", "command.log"):
                if (file := self._folder / log).exists():
                    (self._trace / f"seed{self.seed}-{log}").write_text(file.read_text()[-100_000:])

    def _has_more_turns_than(self, number: int) -> bool:
        for person in self._people:
            assert person.failure is None, f"{person.name}: {person.failure!r}"
        return len(self._known.turns) > number

    def _has_new_steps(self) -> bool:
        return sum(self._steps().values()) > self._num_steps

    def _steps(self) -> Counter[str]:
        """Versions by what has become of them."""
        with closing(sqlite3.connect(self.home / "learn.db", timeout=60)) as database:
            rows = database.execute("SELECT status, COUNT(*) FROM policies GROUP BY status").fetchall()
        return Counter(dict(rows))

    def _count(self, name: str, victim: Actor) -> None:
        if victim.kill():
            self.num_kills += 1
            self.victims[name] += 1
            steps = self._steps()
            self.during_steps += bool(steps["training"] or steps["candidate"])
            self.after_steps += sum(steps.values()) > self._num_steps
            self._num_steps = sum(steps.values())

    @contextmanager
    def _nothing_moves(self) -> Iterator[None]:
        """Whoever lives is frozen, but not in the middle of a write: the checks open the ledgers too."""
        with self._known.commands:  # a prune or backup that runs is waited for
            try:
                wait_until(self._frozen_between_writes, "a moment at which nobody writes", 120)
                yield
            finally:
                for actor in (self._serve, self._learn):
                    actor.thaw()

    def _frozen_between_writes(self) -> bool:
        for actor in (self._serve, self._learn):
            actor.freeze()
        if not is_being_written(self.home):
            return True
        for actor in (self._serve, self._learn):
            actor.thaw()
        return False

    def _check(self) -> None:
        self.counted = check_all(self.home, self._known, self._chance, self._sampled)
        self._check_logs()
        self.num_checks += 1
        self.num_found += self.counted["kept"]

    def _check_logs(self) -> None:
        for log in ("serve.log", "learn.log"):
            text = (self._folder / log).read_text()
            assert "Traceback" not in text, text[-2000:]
            assert "question of" not in text, "a prompt was logged"

    def _finish(self) -> None:
        for actor in (self._serve, self._learn):
            actor.kill()
        self._check()
        self.counted["restored"] = check_backup(self.home, self._known)
        self._serve.start()
        wait_until(self._listens, "the server listens again", 300)
        check_over_http(self.url, self.home, self._known)
        self._serve.kill()
        self._check_logs()

    def _listens(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        for actor in (self._serve, self._learn):
            actor.kill()

    def report(self, failure: str | None) -> dict[str, object]:
        numbers = {"seed": self.seed, "kills": self.num_kills, "checks": self.num_checks}
        numbers["turns_found"] = self.num_found
        numbers |= {"kills_during_steps": self.during_steps, "kills_after_new_steps": self.after_steps}
        return {
            **numbers, "victims": dict(self.victims), "counts": dict(self.counted),
            "versions": dict(self._steps()),
            "failures": [] if failure is None else [f"after kill {self.num_kills}: {failure}"],
        }  # fmt: skip


def _scripted_reply() -> list[int]:
    tokenizer = byte_tokenizer()
    return [*tokenizer.encode("Hello!", add_special_tokens=False), tokenizer.eos_token_id]


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    deadline = time.monotonic() + 60 * options.minutes
    one = Run(folder, options.seed, options.real, options.trace)
    try:
        one.go(options.kills, deadline)
    except Exception:
        one.keep_logs()
        return one.report(traceback.format_exc()[-3000:])
    finally:
        one.close()
    return one.report(None)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="in each run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="at once")
    parser.add_argument("--minutes", type=float, default=600.0, help="no kill is begun later than this")
    parser.add_argument("--real", action="store_true", help="the default model instead of the scripted one")
    parser.add_argument("--results", type=Path, help="also append the lines to this file")
    parser.add_argument("--trace", type=Path, help="after each kill, what there is so far goes in here")
    parser.add_argument("--keep", type=Path, help="keep the runs' folders in here")
    options = parser.parse_args()
    return _run_all(options) if options.runs > 1 else _run_one(options)


def _run_one(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as passing:
        folder = (options.keep or Path(passing)) / f"seed{options.seed}"
        folder.mkdir(parents=True)
        report = run(folder, options)
    line = json.dumps(report)
    print(line, flush=True)
    if options.results:
        with options.results.open("a") as file:
            file.write(line + "\n")
    return 1 if report["failures"] else 0


def _run_all(options: argparse.Namespace) -> int:
    """Each in a process of its own, which prints its line itself."""
    same = ["--kills", str(options.kills), "--minutes", str(options.minutes)]
    same += ["--real"] if options.real else []
    same += [f"--results={options.results}"] if options.results else []
    same += [f"--keep={options.keep}"] if options.keep else []
    same += [f"--trace={options.trace}"] if options.trace else []
    seeds = range(options.seed, options.seed + options.runs)
    command = [sys.executable, "-m", "tests.soak.kills", *same]
    runs = [subprocess.Popen([*command, "--seed", str(seed)]) for seed in seeds]
    return max(abs(one.wait()) for one in runs)


if __name__ == "__main__":
    sys.exit(main())
