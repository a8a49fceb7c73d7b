"""A year of a server's life in minutes: what grows, week by week.

    python -m tests.soak.year --weeks 52 --turns 1000000 --out year.json

The real serve and learn around the scripted engine, with a clock that is moved. It begins with a data folder
that version 0.1 left. In each week 50 people talk over HTTP, many more turns are stored in bulk, versions are
trained and published, somebody is forgotten, old conversations are pruned, and a backup is made. Processes
are restarted, the clock goes wrong and is set right, and in the middle of the year everything moves to
another folder by backup and restore.

Most of the turns in bulk are side requests, as an agent's heartbeats are; the others are judged, like all
that came over HTTP.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.serve_ledger import Entry, ServeLedger, sqlite_url
from openclaw_rl.testing import wait_until
from openclaw_rl.types import SamplingParams, Token, TurnRecord
from tests.soak import actors, memory
from tests.soak.actors import SERVED_NAME, Actor, model_folder, run_command
from tests.soak.clock import DAY_S, Clock
from tests.soak.kills import free_port

OLD = Path(__file__).parents[1] / "capture" / "ledger-0.1"
NUM_PEOPLE, CLIENTS, ASKED_A_WEEK, MOVES_IN_WEEK = 50, 4, 8, 26
#: Conversations are pruned when they were idle for so many days; so many backups are kept.
KEPT_DAYS, KEPT_BACKUPS = 14, 2

_PRUNED_EVERY = 2
_BATCH, _SESSION, _JUDGED = 500, 8, 80
#: About four versions a week: no step is taken early because days pass in seconds.
_BATCH_SIZE, _BATCH_AGE_S = 48, 30 * DAY_S
#: In these weeks the clock goes wrong by so many hours, and is set right two days later.
WRONG_CLOCK = {9: -1.0, 17: -26.0, 33: 72.0, 41: 1.0}


@dataclass(frozen=True)
class Plan:
    weeks: int = 52
    turns: int = 1_000_000
    minutes: float = 600.0
    """No week is begun later than this."""


# --- what runs in the processes --------------------------------------------------------------


def serve_at(clock: Path, home: Path, model: Path, port: int) -> None:
    memory.watch(clock.with_name("serve.memory"))
    Clock(clock).install()
    actors.run_serve(home, model, port)


def learn_at(clock: Path, home: Path, model: Path) -> None:
    memory.watch(clock.with_name("learn.memory"))
    Clock(clock).install()
    actors.run_learn(home, model, batch_size=_BATCH_SIZE, batch_max_age_s=_BATCH_AGE_S)


def command_at(clock: Path, *arguments: str) -> None:
    Clock(clock).install()
    run_command(*arguments)


# --- the year --------------------------------------------------------------------------------


class Year:
    def __init__(self, folder: Path, plan: Plan, progress: Callable[[str], None]) -> None:
        self._folder, self._plan, self._progress = folder, plan, progress
        self._home, self._chance = folder / "home", random.Random(1)
        self._clock, self._stored = Clock(folder / "clock"), 0
        self.weeks: list[dict[str, Any]] = []
        self.spent = Counter[str]()
        self._backups: list[Path] = []
        self._home.mkdir()
        for file in OLD.iterdir():
            (self._home / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        self._model, self._port = model_folder(folder / "model"), free_port()
        self._start()
        self._keys = [self._add(f"person{number}") for number in range(NUM_PEOPLE)]

    def run(self) -> None:
        end = time.monotonic() + 60 * self._plan.minutes
        for week in range(self._plan.weeks):
            if (began := time.monotonic()) > end:
                break
            latencies = self._live(week)
            row = {"week": week, **self._measure(), **latencies}
            spent = {name: round(seconds, 1) for name, seconds in self.spent.items()}
            self.weeks.append({**row, "wall_s": round(time.monotonic() - began, 1), "spent_s": spent})
            self._progress(json.dumps(self.weeks[-1]))
        self._stop()

    def tables(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Rows and bytes of every table with its indexes; the processes are stopped."""
        return {name: _tables(self._home / name) for name in ("serve.db", "learn.db", "search.db")}

    def close(self) -> None:
        for actor in (self._serve, self._learn):
            actor.kill()

    def _live(self, week: int) -> dict[str, Any]:
        """One week."""
        latencies: list[float] = []
        self.spent.clear()
        for day in range(7):
            self._clock.move(DAY_S)
            with self._spending("bulk"):
                self._store_in_bulk(self._plan.turns // self._plan.weeks // 7)
            if day in (1, 4):
                with self._spending("asking"):
                    latencies += self._ask_everybody(ASKED_A_WEEK // 2)
            if week in WRONG_CLOCK and day in (2, 4):
                self._clock.move(3600 * WRONG_CLOCK[week] * (1 if day == 2 else -1))
        with self._spending("learning"):
            self._wait_for_learning()
        with self._spending("forgetting"):
            self._forget()
        with self._spending("pruning"):
            if week % _PRUNED_EVERY == 0:
                self._command("data", "prune", "--older-than", str(KEPT_DAYS), "--home", str(self._home))
        with self._spending("backup"):
            self._back_up(week)
        with self._spending("restart"):
            if week == MOVES_IN_WEEK:
                self._move()
            self._restart(week)
        ordered = sorted(latencies)
        return {
            "asked": len(ordered),
            "p50_ms": round(1000 * statistics.median(ordered), 1),
            "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1),
            "status_ms": round(1000 * statistics.median(self._status() for _ in range(5)), 1),
        }

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.spent[what] += time.monotonic() - began

    # --- processes ---

    def _start(self) -> None:
        log, clock = self._folder / "log", self._clock.file
        self._serve = Actor(log, serve_at, clock, self._home, self._model, self._port).start()
        self._learn = Actor(log, learn_at, clock, self._home, self._model).start()
        wait_until(self._listens, "the server listens", 300)
        key = json.loads((self._home / "keys.json").read_text())["default"]
        self._owner = self._client(key)

    def _stop(self) -> None:
        self._owner.close()
        for actor in (self._learn, self._serve):
            actor.stop()

    def _restart(self, week: int) -> None:
        """Learn every fourth week, serve every thirteenth; in between they live on."""
        if week % 13 == 12:
            self._stop()
            self._start()
        elif week % 4 == 3:
            self._learn.stop()
            self._learn.start()

    def _move(self) -> None:
        """To another folder, as to another machine."""
        self._stop()
        moved = self._folder / "moved"
        self._command("restore", str(self._backups[-1]), "--home", str(moved))
        shutil.rmtree(self._home)
        self._home = moved
        self._start()

    def _command(self, *arguments: str) -> None:
        done = Actor(self._folder / "log", command_at, self._clock.file, *arguments).start().finish(600)
        assert done, (arguments, (self._folder / "log").read_text()[-2000:])

    def _listens(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    # --- people ---

    def _client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=120)

    def _add(self, name: str) -> str:
        key: str = self._owner.post("/v1/users", json={"name": name}).raise_for_status().json()["key"]
        return key

    def _ask_everybody(self, requests: int) -> list[float]:
        """So many requests by each, half of them the reaction to the one before; seconds of each."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            found = pool.map(lambda key: self._talk(key, requests), self._keys)
        return [seconds for each in found for seconds in each]

    def _talk(self, key: str, requests: int) -> list[float]:
        took = []
        with self._client(key) as http:
            for _ in range(requests // 2):
                said = [{"role": "user", "content": f"question {self._chance.random()}"}]
                turn_id, seconds = _ask(http, said)
                reaction = {"role": "user", "content": self._chance.choice(("bad, say less", "good"))}
                _, more = _ask(http, [*said, {"role": "assistant", "content": "Hello!"}, reaction])
                if self._chance.random() < 0.1:
                    rating = {"id": turn_id, "rating": self._chance.choice(("up", "down"))}
                    http.post("/v1/feedback", json=rating).raise_for_status()
                took += [seconds, more]
        return took

    def _status(self) -> float:
        began = time.monotonic()
        self._owner.get("/v1/status").raise_for_status()
        return time.monotonic() - began

    def _forget(self) -> None:
        listed = self._owner.get("/v1/sessions", params={"limit": 20}).raise_for_status().json()["data"]
        session = self._chance.choice(listed)["id"]
        self._owner.delete(f"/v1/sessions/{session}").raise_for_status()

    def _back_up(self, week: int) -> None:
        file = self._folder / f"week{week}.tgz"
        self._command("backup", str(file), "--home", str(self._home))
        self._backups.append(file)
        for old in self._backups[:-KEPT_BACKUPS]:
            old.unlink(missing_ok=True)

    def _store_in_bulk(self, number: int) -> None:
        with closing(ServeLedger(sqlite_url(self._home / "serve.db"))) as ledger:
            for begin in range(0, number, _BATCH):
                entries: list[Entry] = []
                for _ in range(min(_BATCH, number - begin)):
                    entries += _in_bulk(self._stored, self._clock.now())
                    self._stored += 1
                ledger.append(entries)

    def _wait_for_learning(self) -> None:
        """Until learn has read and judged what there is, and the index is complete."""

        def done() -> bool:
            with _opened(self._home / "serve.db") as serve, _opened(self._home / "learn.db") as learn:
                [(last,)] = serve.execute("SELECT value FROM counters WHERE name = 'last_turn'")
                [(ready,)] = learn.execute("SELECT COUNT(*) FROM judge_tasks WHERE ready IS NOT NULL")
                read = dict(learn.execute("SELECT name, value FROM learn_marks")).get("cursor_turns", 0)
            return bool(read >= last and not ready)

        wait_until(done, "learn has caught up", 600)

    # --- measuring ---

    def _measure(self) -> dict[str, Any]:
        found: dict[str, Any] = {"turns": self._stored}
        for name, actor in (("serve", self._serve), ("learn", self._learn)):
            process = psutil.Process(actor.pid)
            found[f"{name}_mb"] = round(process.memory_info().rss / 1e6, 1)
            found[f"{name}_memory"] = self._memory(name)
            found[f"{name}_files"], found[f"{name}_threads"] = process.num_fds(), process.num_threads()
        with _opened(self._home / "learn.db") as learn, _opened(self._home / "serve.db") as serve:
            for table, database in (("turns", serve), ("verdicts", learn), ("policies", learn)):
                [(found[f"{table}_there"],)] = database.execute(f"SELECT COUNT(*) FROM {table}")
        return found | {"disk_kb": self._disk()}

    def _memory(self, name: str) -> dict[str, float]:
        """What the process has just written down, or nothing if it began a moment ago."""
        file = self._folder / f"{name}.memory"
        found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def _disk(self) -> dict[str, int]:
        """kB by the first part of the name in the data folder; ``log`` is what the processes said."""
        sizes: dict[str, int] = {"log": (self._folder / "log").stat().st_size // 1000}
        for file in self._home.rglob("*"):
            if file.is_file():
                name = file.relative_to(self._home).parts[0]
                sizes[name] = sizes.get(name, 0) + file.stat().st_size // 1000
        return dict(sorted(sizes.items()))


def _opened(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60))


def _tables(file: Path) -> dict[str, tuple[int, int]]:
    with _opened(file) as database:
        names = dict(database.execute("SELECT name, tbl_name FROM sqlite_schema WHERE rootpage"))
        sizes: dict[str, int] = {}
        for name, size in database.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name"):
            owner = names.get(name, name)
            sizes[owner] = sizes.get(owner, 0) + size
        rows = {
            name: database.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]
            for name in sizes.keys() & names.keys()
        }
    return {name: (rows.get(name, 0), size) for name, size in sorted(sizes.items())}


def _ask(http: httpx.Client, messages: list[dict[str, str]]) -> tuple[str, float]:
    began = time.monotonic()
    answer = http.post("/v1/chat/completions", json={"model": SERVED_NAME, "messages": messages})
    seconds = time.monotonic() - began
    return answer.raise_for_status().json()["id"], seconds


def _in_bulk(number: int, now: float) -> list[Entry]:
    """One turn; one in ``_JUDGED`` is a reply that somebody reacted to."""
    token = Token(5, -0.1, -0.1, (5, 6), (-0.1, -2.0), 0, finish_reason="stop")
    judged = number % _JUDGED == 0
    said = [{"role": "user", "content": f"question {number}"}]
    reply = {"role": "assistant", "content": f"reply {number}"}
    turn = TurnRecord(
        f"bulk-{number}", f"session-{number // _SESSION}", f"person{number // _SESSION % NUM_PEOPLE}", "chat",
        "main" if judged else "side", said, None, {}, reply, [1, 2, 3], [token], SamplingParams(8), 0, "stop",
        now,
    )  # fmt: skip
    return [turn, TurnEvent(turn.id, "closed", now)] if judged else [turn]


def live(folder: Path, plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    year = Year(folder, plan, progress)
    try:
        year.run()
        return {
            "weeks": year.weeks, "tables": year.tables(), "plan": vars(plan),
            "machine": f"{psutil.cpu_count()} cores, Python {platform.python_version()}, "
            f"SQLite {sqlite3.sqlite_version}",
        }  # fmt: skip
    finally:
        year.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weeks", type=int, default=Plan.weeks)
    parser.add_argument("--turns", type=int, default=Plan.turns, help="in bulk")
    parser.add_argument("--minutes", type=float, default=Plan.minutes, help="no week is begun later")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    plan = Plan(options.weeks, options.turns, options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        result = live(Path(folder), plan, lambda line: print(line, flush=True))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
