"""Two gateways and two learn hosts on one PostgreSQL, in network namespaces; each dies or is cut off in turn.

No reply that somebody got is missing from the ledger, no turn is in two steps, a conversation is one session
whichever gateway answers, and learning goes on for everybody. Versions are shared through object storage.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.leases import view_leases
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.samples import policies, samples, swaps
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.steps import PASSED
from openclaw_rl.capture.versions import CANDIDATE, TRAINING
from openclaw_rl.processes.membership import EXIT_LOST
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import ServerProcess, clean_environment, command, tiny_model, wait_until

from .conftest import Host, NetworkPostgres

pytestmark = pytest.mark.hosts
PEOPLE = ("ann", "bob")
SCOPES = tuple(f"user:{name}" for name in PEOPLE)
#: On an idle machine it takes seconds; how long it took is printed.
_MOST_S = 300


class Learner:
    """``openclaw-rl learn`` on a host of its own."""

    def __init__(self, host: Host, home: Path, arguments: list[str]) -> None:
        self.host, self._home, self._arguments = host, home, arguments
        self.log = home.with_name(f"{home.name}.log")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._home.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.host.within, command(), "learn", *self._arguments],
                env=clean_environment(self._home), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def restart(self) -> None:
        self.process.wait(60)
        self.process = self._start()

    @property
    def name(self) -> str:
        file = self._home / "host-id"
        return file.read_text() if file.exists() else ""


@dataclass
class Talk:
    """Conversations whose requests go to the gateways in turn; one that cannot be reached is passed over."""

    urls: list[str]
    key: str
    got: list[tuple[str, str]] = field(default_factory=list)
    """Reply and session of everything that arrived whole."""
    refused: int = 0
    problems: list[str] = field(default_factory=list)
    is_cut: bool = False
    """A gateway that is cut off from the ledger cannot know what the other one answered meanwhile."""
    sessions: list[tuple[set[str], set[str], bool]] = field(default_factory=list)
    """Of each conversation: its sessions, its gateways, and whether one of these was cut off meanwhile."""
    _numbers: Iterator[int] = field(default_factory=count)
    _stop: threading.Event = field(default_factory=threading.Event)

    def _ask(self, http: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
        while True:
            url = self.urls[next(self._numbers) % len(self.urls)]
            try:
                body = {"model": "default", "max_tokens": 12, "messages": messages}
                answer = http.post(f"{url}/v1/chat/completions", json=body)
            except httpx.HTTPError:  # it was killed: nobody got this reply
                self.refused += 1
                time.sleep(0.2)
                continue
            if answer.status_code != 200:
                self.problems.append(f"{answer.status_code} {answer.text}")
                raise AssertionError(answer.text)
            reply, session = answer.json(), answer.headers["x-session-id"]
            self.got.append((reply["id"], session))
            sessions, gateways, _ = self.sessions[-1]
            sessions.add(session)
            gateways.add(url)
            return dict(reply["choices"][0]["message"])

    def run(self) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        # As a load balancer would: a gateway that cannot be reached is soon given up.
        with httpx.Client(headers=headers, timeout=httpx.Timeout(15, connect=2)) as http:
            for number in count():
                said: list[dict[str, Any]] = [{"role": "user", "content": f"question {number}"}]
                self.sessions.append((set(), set(), self.is_cut))
                for reaction in ("bad, say less", "good", "bad, say more"):
                    said.append(self._ask(http, said))
                    self._note_cut()
                    said.append({"role": "user", "content": f"{reaction} {number}"})
                    if self._stop.wait(0.3):
                        return
                self._ask(http, said)
                self._note_cut()

    def _note_cut(self) -> None:
        sessions, gateways, before = self.sessions[-1]
        self.sessions[-1] = (sessions, gateways, before or self.is_cut)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


@dataclass
class Observer:
    """The database as its owner sees it."""

    ledgers: Ledgers

    def versions(self, scope: str) -> int:
        """Trained and checked; a tiny network that has learned for long is often rejected."""
        query = sa.select(sa.func.count()).where(
            policies.c.status.not_in((TRAINING, CANDIDATE)), policies.c.scope == scope
        )
        with self.ledgers.learn.db.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def in_a_step(self, scope: str) -> bool:
        query = sa.select(policies.c.version).where(policies.c.status == TRAINING, policies.c.scope == scope)
        with self.ledgers.learn.db.connect() as connection:
            return connection.execute(query).first() is not None

    def leader(self, scope: str) -> str | None:
        for host in view_leases(self.ledgers.learn):
            if f"scope:{scope}" in host["holds"]:
                return str(host["host"])
        return None

    def learns_on(self, what: str, more: int = 1) -> None:
        """Wait until so many more versions were made in every scope; says how long that took."""
        before, began = {scope: self.versions(scope) for scope in SCOPES}, time.monotonic()
        for scope in SCOPES:
            wait_until(
                lambda scope=scope: self.versions(scope) >= before[scope] + more,  # type: ignore[misc]
                f"learning goes on for {scope}: {what}",
                _MOST_S,
            )
        leaders = {scope: self.leader(scope) for scope in SCOPES}
        print(
            f"\n{what}: everybody's next version was made after {time.monotonic() - began:.1f} s; {leaders}"
        )


def test_any_host_may_die_or_be_cut_off(hosts: list[Host], database: NetworkPostgres, tmp_path: Path) -> None:
    def url(host: Host | None = None) -> str:
        where = f"host={database.folder}&port=55432" if host is None else f"host={host.database}&port=55432"
        return f"postgresql://postgres@/postgres?{where}"

    bucket = tmp_path / "bucket"
    ring = KeyRing(tmp_path / "people" / "keys.json")
    keys = [ring.add(name) for name in PEOPLE]
    model = str(tiny_model(tmp_path / "model"))
    shared = [
        "--model", model, "--renderer", "qwen3", "--kernel", "float", "--num-threads", "1",
        "--policies", f"file://{bucket}", "--people-folder", str(tmp_path / "people"),
        "--policy-scope", "user", "--algo", "hybrid", "--batch-size", "2",
    ]  # fmt: skip
    own = [
        "--own-engine",
        "--judge",
        "openclaw_rl.testing:WordJudge",
        "--held-out-share",
        "0",
        "--lora-rank",
        "2",
    ]
    environment = {"HOST": "0.0.0.0", "PORT": "30000"}

    def gateway(host: Host) -> ServerProcess:
        return ServerProcess(
            tmp_path / host.name, *shared, "--no-learn", "--ledger-url", url(host),
            environment=environment, within=host.within,
        ).start()  # fmt: skip

    def learner(host: Host) -> Learner:
        return Learner(host, tmp_path / host.name, [*shared, *own, "--ledger-url", url(host)])

    one, other = gateway(hosts[0]), gateway(hosts[1])
    learners = [learner(host) for host in hosts[2:]]
    seen = Observer(Ledgers.of(ServeLedger(url()), LearnLedger(url())))
    talks = [Talk([f"http://{host.address}:30000" for host in hosts[:2]], key) for key in keys]

    def leading(scope: str) -> Learner:
        return wait_until(
            lambda: next((each for each in learners if each.name and each.name == seen.leader(scope)), None),
            f"some host trains {scope}",
        )

    def answered() -> list[int]:
        return [len(talk.got) for talk in talks]

    def all_go_on(what: str) -> None:
        before = answered()
        wait_until(lambda: all(now > was + 3 for now, was in zip(answered(), before, strict=True)), what, 90)

    def is_written(host: Host) -> bool:
        ledger = httpx.get(f"http://{host.address}:30000/readyz").json()["ledger"]
        return bool(ledger["ok"] and ledger["num_unsaved"] == 0)

    @contextmanager
    def ledger_cut() -> Iterator[None]:
        for talk in talks:
            talk.is_cut = True
        yield
        wait_until(lambda: all(map(is_written, hosts[:2])), "all is written", 90)
        for talk in talks:
            talk.is_cut = False

    try:
        with talks[0].going_on(), talks[1].going_on():
            wait_until(
                lambda: all(seen.versions(s) for s in SCOPES), "everybody's first version was made", 240
            )

            one.kill()
            seen.learns_on("a gateway was killed")
            one = gateway(hosts[0])

            with ledger_cut():
                hosts[1].cut()
                seen.learns_on("a gateway is cut off from the database")
                time.sleep(30)
                all_go_on("both gateways go on answering")
                hosts[1].mend()

            with ledger_cut():
                hosts[1].cut()
                hosts[1].cut_clients()
                time.sleep(30)
                all_go_on("the other gateway answers")
                seen.learns_on("a gateway is cut off from everything")
                hosts[1].mend()
                hosts[1].mend_clients()

            with ledger_cut():
                database.stop("immediate")
                time.sleep(30)
                all_go_on("both gateways answer without a database")
                database.start()
                for each in learners:
                    each.restart()
            seen.learns_on("the database was down")

            bucket.rename(bucket.with_name("away"))
            bucket.write_text("no folder")
            all_go_on("both gateways answer without the object storage")
            time.sleep(10)
            bucket.unlink()
            bucket.with_name("away").rename(bucket)
            seen.learns_on("the object storage was gone")

            dying = leading(SCOPES[0])
            wait_until(lambda: seen.in_a_step(SCOPES[0]), "a step is being made", 60)
            dying.process.kill()
            seen.learns_on("the leader was killed in a step")
            assert all(leading(scope) is not dying for scope in SCOPES)
            dying.restart()

            cut = leading(SCOPES[1])
            cut.host.cut()
            seen.learns_on("the leader is cut off from the database")
            assert cut.process.wait(90) == EXIT_LOST, cut.log.read_text()[-2000:]
            cut.host.mend()
            cut.restart()
            seen.learns_on("everybody is back", 2)
        assert [talk.problems for talk in talks] == [[], []]
        for process in (one, other):
            process.stop()
        for each in learners:
            each.process.terminate()
            each.process.wait(60)
        for talk in talks:
            _nothing_is_lost(seen.ledgers, talk)
            _one_session_each(talk)
        _nothing_is_trained_twice(seen.ledgers)
        assert list(bucket.glob("*/manifest.json"))
    finally:
        for process in (one, other):
            if process.process.poll() is None:
                process.kill()
        for each in learners:
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()
        seen.ledgers.close()


def _nothing_is_lost(ledgers: Ledgers, talk: Talk) -> None:
    print(f"\n{len(talk.got)} replies arrived, {talk.refused} requests found no gateway")
    missing = [turn_id for turn_id, _ in talk.got if ledgers.serve.turn_summary(turn_id) is None]
    assert missing == []
    wrong = [i for i, session in talk.got if ledgers.serve.turn_summary(i)["session_id"] != session]  # type: ignore[index]
    assert wrong == []
    assert ledgers.serve.check_integrity() == []


def _one_session_each(talk: Talk) -> None:
    """Also of conversations that went from one gateway to the other, unless the ledger was out of reach.

    On a busy machine it may take longer than the five seconds that a gateway waits: one in a hundred.
    """
    usual = [
        (sessions, gateways) for sessions, gateways, was_cut in talk.sessions if not was_cut and sessions
    ]
    both = [sessions for sessions, gateways in usual if len(gateways) == 2]
    split = [sessions for sessions, _ in usual if len(sessions) > 1]
    in_a_cut = sum(len(sessions) > 1 for sessions, _, was_cut in talk.sessions if was_cut)
    print(
        f"{len(both)} conversations alternated between the gateways, {len(split)} of them became two sessions"
    )
    print(f"during a cut, {in_a_cut} others did")
    assert both
    assert len(split) <= len(usual) // 100


def _nothing_is_trained_twice(ledgers: Ledgers) -> None:
    with ledgers.learn.db.connect() as connection:
        steps = connection.execute(sa.select(samples.c.turn_id, samples.c.scope, samples.c.step)).all()
        versions = connection.execute(sa.select(policies).order_by(policies.c.version)).all()
        served = connection.execute(sa.select(swaps).order_by(swaps.c.seq)).all()
    assert max(Counter(row.turn_id for row in steps).values()) == 1
    # A version may serve again when people like a later one less; it passes its checks once.
    passed = [row.version for row in served if row.why == PASSED]
    assert len(passed) == len(set(passed)), "no version was published twice"
    scope_of = {row.version: row.scope for row in versions}
    parent_of = {row.version: row.parent for row in versions}
    assert all(row.scope == scope_of[row.step] for row in steps if row.step is not None)
    counted = Counter(row.step for row in steps if row.step is not None)
    assert all(counted[row.version] <= row.num_samples for row in versions)
    for scope in SCOPES:
        mine = [row for row in versions if row.scope == scope]
        assert [row.status for row in mine].count("serving") == 1
        at = 0
        for row in (row for row in served if row.scope == scope):
            assert row.why != PASSED or parent_of[row.version] == at, "each is made from the one that served"
            at = row.version
