"""One run: a data folder, its processes and its people, and one kill after the other.

    python -m tests.soak.kills --seeds 16 --minutes 9

runs that many at once, each with its own folder and port, until the time is over, and says what became of
each. It needs nothing but Python and this package.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from openclaw_rl.testing import wait_until
from tests.soak.actors import Actor, model_folder, run_learn, run_serve
from tests.soak.invariants import check_all, check_backup, check_over_http
from tests.soak.people import Acknowledged, Owner, Person, Writer

NUM_WRITERS = 4
#: A kill comes within so many seconds of the last start, before or after the server listens again.
_MOST_S = 1.2
_CHECKED, _KILLS_BOTH = 0.25, 0.35


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Run:
    """``seed`` decides who is killed and when; what the people say between is up to the machine."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed, self.num_kills, self._folder = seed, 0, folder
        self.home, self.counted = folder / "home", Counter[str]()
        self.victims = Counter[str]()
        self._known, self._chance = Acknowledged(), random.Random(seed)
        model, port = model_folder(folder / "model"), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._serve = Actor(folder / "serve.log", run_serve, self.home, model, port).start()
        self._learn = Actor(folder / "learn.log", run_learn, self.home, model).start()
        wait_until(self._listens, "the server listens", 300)
        everybody = (self.home, port, self._known)
        self._owner = Owner("the owner", f"{seed} owner", *everybody)
        self._people: list[Person] = [
            self._owner,
            *(Writer(f"writer {n}", f"{seed} {n}", *everybody) for n in range(NUM_WRITERS)),
        ]

    def go(self, num_kills: int, deadline: float) -> None:
        """Kill so often, or until the deadline; everything is checked in between and in the end."""
        for person in self._people:
            person.start()
        try:
            while self.num_kills < num_kills and time.monotonic() < deadline:
                self._kill_once()
        finally:
            for person in self._people:
                person.stopping.set()
        for person in self._people:
            person.join(200)
            assert person.failure is None, repr(person.failure)
        self._finish()

    def _kill_once(self) -> None:
        if self._chance.random() < 0.8:
            before = len(self._known.turns)
            wait_until(lambda: len(self._known.turns) > before, f"{self}: writing goes on", 300)
        threading.Event().wait(self._chance.uniform(0, _MOST_S))  # not in step with the replies
        command = self._owner.command
        if command is not None and self._chance.random() < 0.5:
            self._count("command", command)
            return
        victims = [("serve", self._serve), ("learn", self._learn)]
        if self._chance.random() > _KILLS_BOTH:
            victims = [victims[self._chance.random() < 0.4]]
        for name, victim in victims:
            self._count(name, victim)
        if len(victims) == 2 and self._chance.random() < _CHECKED:
            self._check()
        for _, victim in victims:
            victim.start()

    def _count(self, name: str, victim: Actor) -> None:
        if victim.kill():
            self.num_kills += 1
            self.victims[name] += 1

    def _check(self) -> None:
        """Nothing may write meanwhile: a prune or backup that runs is waited for."""
        while self._owner.command is not None:
            time.sleep(0.01)
        try:
            self.counted = check_all(self.home, self._known, self._chance)
        except AssertionError as error:
            raise AssertionError(f"{self}: {error}") from error

    def _finish(self) -> None:
        self._serve.kill()
        self._learn.kill()
        self._check()
        self.counted["restored"] = check_backup(self.home, self._known)
        self._serve.start()
        wait_until(self._listens, "the server listens again", 300)
        check_over_http(self.url, self.home, self._known)
        self._serve.kill()
        for log in ("serve.log", "learn.log"):
            text = (self._folder / log).read_text()
            assert "Traceback" not in text, f"{self}: {text[-2000:]}"
            assert "question of" not in text, f"{self}: a prompt was logged"

    def _listens(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        for actor in (self._serve, self._learn):
            actor.kill()

    def report(self) -> dict[str, object]:
        return {"seed": self.seed, "kills": self.num_kills, **self.victims, **self.counted}

    def __str__(self) -> str:
        return f"seed {self.seed}, kill {self.num_kills}"


def run(folder: Path, seed: int, num_kills: int, minutes: float = 600.0) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    one = Run(folder, seed)
    try:
        one.go(num_kills, time.monotonic() + 60 * minutes)
    finally:
        one.close()
    return one


# --- several at once -------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs at once")
    parser.add_argument("--first", type=int, default=1, help="the first run's seed")
    parser.add_argument("--kills", type=int, default=10_000, help="at most so many in each run")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all of it, checks and starts included"
    )
    parser.add_argument("--out", type=Path, help="also write the report here")
    options = parser.parse_args()
    if options.seeds == 1:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(run(Path(folder), options.first, options.kills, options.minutes).report()))
        return 0
    return _run_all(options)


def _run_all(options: argparse.Namespace) -> int:
    own = [sys.executable, "-m", "tests.soak.kills", "--seeds", "1", "--kills", str(options.kills)]
    runs = {
        seed: subprocess.Popen(
            [*own, "--minutes", str(options.minutes * 0.8), "--first", str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(options.first, options.first + options.seeds)
    }  # fmt: skip
    deadline, reports = time.monotonic() + 60 * options.minutes, []
    for seed, one in runs.items():
        try:
            out, errors = one.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            out, errors = "", "not finished in time"
        reports.append(json.loads(out) if one.returncode == 0 else {"seed": seed, "failed": errors[-3000:]})
    failed = [report for report in reports if "failed" in report]
    total = Counter[str]()
    for report in reports:
        total.update({name: n for name, n in report.items() if isinstance(n, int) and name != "seed"})
    text = json.dumps({"runs": reports, "total": total, "failed": len(failed)}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
