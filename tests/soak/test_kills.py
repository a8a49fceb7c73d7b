"""Serve and learn killed at random while people write, rate, exclude, prune, forget and promote.

Nothing acknowledged is lost, nothing is judged or claimed twice, what was forgotten stays forgotten.

Real processes around the scripted engine. ``make test-soak`` kills 200 times; SOAK_KILLS and SOAK_SEED say
otherwise. Every run prints its seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger, verdicts
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.samples import policies, samples
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import wait_until

SERVE = """
import pathlib, sys, uvicorn
from openclaw_rl.serve.connections import server_settings
from openclaw_rl.testing import scripted_system
system, port = scripted_system(pathlib.Path(sys.argv[1])), int(sys.argv[2])
settings = server_settings(system.app(), system.config.serve, host="127.0.0.1", port=port, log_level="error")
uvicorn.Server(settings).run()
"""
LEARN = """
import asyncio, pathlib, sys
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.judge.worker import JudgeWorker
import numpy as np
from openclaw_rl.testing import WordJudge
from openclaw_rl.testing.examples import make_example
from openclaw_rl.train.policies import PolicyStore
home = pathlib.Path(sys.argv[1])
serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
policies, store = PolicyLedger(serve, learn), PolicyStore(home / "policies")

def lesson(turn):
    ids = np.array([[token.id] for token in turn.tokens], np.int32)
    ones = np.ones(ids.shape, np.float32)
    return make_example(turn, -1, ids, -ones, ones)

def save(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"weights")

def take_a_step():
    for seq, turn_id in policies.pending(20):
        judged = policies.judged(turn_id)
        if judged is None:
            policies.skip(seq)
        elif judged[1].trainable and judged[1].score < 0:
            policies.settle(seq, *judged, [lesson(judged[0])])
        else:
            policies.settle(seq, *judged, reason="nothing to learn")
    made = policies.unfinished()
    if made is None and policies.waiting()[0] >= 4:
        made = policies.claim(4, policies.serving(), "", 0)
    if made is not None:
        if not store.exists(made.version):
            policies.take_out_excluded(made.version)
            store.write(made.version, save, {"version": made.version, "scope": "everyone"})
        policies.trained(made.version, {"loss": 1.0})
        policies.publish(made.version, {"passed": True})

async def train():
    while True:
        await asyncio.to_thread(take_a_step)
        await asyncio.sleep(0.02)

async def run():
    judge = JudgeWorker(LedgerJudgeQueue(serve, learn, 1800), WordJudge(), poll_s=0.02)
    await asyncio.gather(judge.run(), train())

asyncio.run(run())
"""
NUM_WRITERS = 4


@dataclass
class Acknowledged:
    """What the server said it has."""

    turns: dict[str, str] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    rated: set[str] = field(default_factory=set)
    sessions: list[tuple[str, list[str]]] = field(default_factory=list)
    """Finished ones: session and turns."""
    forgetting: set[str] = field(default_factory=set)
    """Turns of which somebody has asked that they be forgotten, whether or not it was acknowledged."""
    forgotten: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Writer(threading.Thread):
    """Talks, complains, rates and excludes until told to stop; a server that is away is waited for."""

    def __init__(self, number: int, home: Path, port: int, acknowledged: Acknowledged) -> None:
        super().__init__(name=f"writer {number}")
        self._chance = random.Random(number)
        self._home, self._port, self._known = home, port, acknowledged
        self.stopping = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            try:
                self._talk(f"{self.name}, {number}")
            except (httpx.TransportError, OSError):
                self.stopping.wait(0.05)
            except Exception as error:
                self.failure = error
                return
            number += 1

    def _talk(self, name: str) -> None:
        key = json.loads((self._home / "keys.json").read_text())["default"]
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=30) as client:
            said = [{"role": "user", "content": f"question of {name}"}]
            first, session = self._ask(client, said)
            said += [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "bad, say less"}]
            second, _ = self._ask(client, said)
            what = self._chance.random()
            if what < 0.3:
                answer = client.post("/v1/feedback", json={"id": first, "rating": "down"})
                self._note(answer, self._known.rated, first)
            elif what < 0.5:
                self._note(client.post(f"/v1/turns/{first}/exclude"), self._known.excluded, first)
            with self._known.lock:
                self._known.sessions.append((session, [first, second]))

    def _ask(self, client: httpx.Client, messages: list[dict[str, str]]) -> tuple[str, str]:
        answer = client.post("/v1/chat/completions", json={"model": "scripted", "messages": messages})
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        with self._known.lock:
            self._known.turns[reply["id"]] = messages[-1]["content"]
        return str(reply["id"]), answer.headers["x-session-id"]

    def _note(self, answer: httpx.Response, known: set[str], turn_id: str) -> None:
        assert answer.status_code in (200, 409, 503), answer.text
        if answer.status_code == 200:
            with self._known.lock:
                known.add(turn_id)


class Owner(Writer):
    """Forgets sessions, promotes versions, prunes and flushes, one after the other."""

    def _talk(self, name: str) -> None:
        key = json.loads((self._home / "keys.json").read_text())["default"]
        headers = {"authorization": f"Bearer {key}"}
        what = self._chance.choice(("forget", "promote", "prune", "flush"))
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=150) as client:
            getattr(self, f"_{what}")(client)
        with self._known.lock:
            self._known.done[what] += 1
        self.stopping.wait(self._chance.uniform(0, 0.3))

    def _forget(self, client: httpx.Client) -> None:
        with self._known.lock:
            if len(self._known.sessions) < 5:
                return
            session, turns = self._known.sessions.pop(self._chance.randrange(len(self._known.sessions)))
            self._known.forgetting.update(turns)
        answer = client.delete(f"/v1/sessions/{session}")
        assert answer.status_code in (200, 404), answer.text
        if answer.status_code == 200:
            with self._known.lock:
                self._known.forgotten.update(turns)

    def _promote(self, client: httpx.Client) -> None:
        rows = client.get("/v1/policies").json()["data"]
        version = self._chance.choice([row["version"] for row in rows])
        answer = client.post(f"/v1/policies/{version}/promote")
        assert answer.status_code in (200, 404), answer.text

    def _prune(self, client: httpx.Client) -> None:
        home = self._home
        serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
        try:
            prune(serve, older_than_s=0.0, learn_ledger=learn)
        finally:
            serve.close()
            learn.close()

    def _flush(self, client: httpx.Client) -> None:
        assert client.post("/v1/flush").status_code in (200, 503)


class Process:
    """One of the two, started again whenever it was killed."""

    def __init__(self, code: str, log: Path, *arguments: str) -> None:
        self._command, self._log = [sys.executable, "-c", code, *arguments], log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.process = self._start()


def check(home: Path, known: Acknowledged, where: str) -> Counter[str]:
    """With both processes dead."""
    serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
    try:
        assert serve.check_integrity() == [], where
        kept = known.turns.keys() - known.forgetting
        for turn_id in known.forgotten:
            assert serve.turn_summary(turn_id) is None, f"{where}: {turn_id} was forgotten and is there"
            assert learn.verdict(turn_id) is None, f"{where}: a verdict on {turn_id} is there"
        for turn_id in kept:
            assert serve.turn_summary(turn_id) is not None, f"{where}: {turn_id} was acknowledged and is gone"
        for turn_ids, kind in ((known.excluded, "exclude"), (known.rated, "feedback")):
            for turn_id in turn_ids & kept:
                kinds = {event.kind for event in serve.events_of(turn_id)}
                assert kind in kinds, f"{where}: {kind} of {turn_id} is gone"
        with learn.db.connect() as connection:
            voted = sa.select(verdicts.c.turn_id).where(verdicts.c.source == "votes")
            judged = Counter(row.turn_id for row in connection.execute(voted))
        twice = [turn_id for turn_id, number in judged.items() if number > 1]
        assert twice == [], f"{where}: judged twice"
        trained = check_steps(PolicyLedger(serve, learn), where)
        return Counter(turns=len(known.turns), judged=len(judged), excluded=len(known.excluded),
                       forgotten=len(known.forgotten), trained=trained, **known.done)  # fmt: skip
    finally:
        serve.close()
        learn.close()


def check_steps(ledger: PolicyLedger, where: str) -> int:
    """Counts are right, one version serves, claimed samples have their step; how many are trained."""
    with ledger.db.connect() as connection:
        rows = connection.execute(sa.select(samples.c.status, samples.c.reason, samples.c.step)).all()
        versions = {row.version: row.status for row in connection.execute(sa.select(policies))}
    found = Counter(row.status + (f":{row.reason}" if row.reason else "") for row in rows)
    assert ledger.counts() == found, f"{where}: counts"
    assert sum(status == "serving" for status in versions.values()) <= 1, f"{where}: {versions}"
    for row in rows:
        if row.status == "claimed":
            assert versions[row.step] in ("training", "candidate"), f"{where}: step {row.step}"
        if row.status == "trained":
            assert versions[row.step] in ("serving", "retired"), f"{where}: step {row.step}"
    return found["trained"]


@pytest.mark.soak
def test_kills_at_random_lose_and_double_nothing(tmp_path: Path) -> None:
    num_kills = int(os.environ.get("SOAK_KILLS", "200"))
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns() % 100_000)))
    print(f"seed {seed}, {num_kills} kills")
    chance, home, known = random.Random(seed), tmp_path / "home", Acknowledged()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = Process(SERVE, tmp_path / "serve.log", str(home), str(port))
    wait_until(lambda: (home / "keys.json").exists(), "the server has made its keys", 120)
    learn = Process(LEARN, tmp_path / "learn.log", str(home))
    writers = [Writer(number, home, port, known) for number in range(NUM_WRITERS)]
    writers.append(Owner(NUM_WRITERS, home, port, known))
    for writer in writers:
        writer.start()
    counted: Counter[str] = Counter()
    try:
        for number in range(num_kills):
            expected = len(known.turns) + chance.randrange(2, 40)
            wait_until(lambda e=expected: len(known.turns) >= e, f"kill {number}: writing goes on", 300)  # type: ignore[misc]
            threading.Event().wait(chance.uniform(0, 0.1))  # not in step with the replies
            victim, other = (serve, learn) if chance.random() < 0.6 else (learn, serve)
            victim.kill()
            if chance.random() < 0.2 or number + 1 == num_kills:
                other.kill()
                counted = check(home, known, f"seed {seed}, kill {number}")
                other.restart()
            victim.restart()
    finally:
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(200)
        serve.kill()
        learn.kill()
    assert [writer.failure for writer in writers if writer.failure] == []
    counted = check(home, known, f"seed {seed}, in the end")
    print(f"seed {seed}: {num_kills} kills, {dict(counted)}")
    assert counted["turns"] > num_kills
    assert "Traceback" not in (tmp_path / "serve.log").read_text()
