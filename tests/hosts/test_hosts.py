"""Two gateways and two learn hosts on one PostgreSQL, in network namespaces; each dies or is cut off in turn.

No reply that somebody got is missing from the ledger, no turn is in two steps, and learning goes on.
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
from openclaw_rl.processes.membership import EXIT_LOST
from openclaw_rl.testing import ServerProcess, clean_environment, command, tiny_model, wait_until
from tests.capture.conftest import Postgres

from .conftest import Host

pytestmark = pytest.mark.hosts
KEY = "key-of-all-hosts"


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
    got: list[tuple[str, str]] = field(default_factory=list)
    """Reply and session of everything that arrived whole."""
    refused: int = 0
    problems: list[str] = field(default_factory=list)
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
                self.problems.append(answer.text)
                raise AssertionError(answer.text)
            reply = answer.json()
            self.got.append((reply["id"], answer.headers["x-session-id"]))
            return dict(reply["choices"][0]["message"])

    def run(self) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(headers=headers, timeout=30) as http:
            for number in count():
                said: list[dict[str, Any]] = [{"role": "user", "content": f"question {number}"}]
                for reaction in ("bad, say less", "good", "bad, say more"):
                    said.append(self._ask(http, said))
                    said.append({"role": "user", "content": f"{reaction} {number}"})
                    if self._stop.wait(0.3):
                        return
                self._ask(http, said)

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

    def versions(self) -> int:
        with self.ledgers.learn.db.connect() as connection:
            query = sa.select(sa.func.count()).where(policies.c.published_at.is_not(None))
            return int(connection.execute(query).scalar_one())

    def in_a_step(self) -> bool:
        with self.ledgers.learn.db.connect() as connection:
            query = sa.select(policies.c.version).where(policies.c.status == "training")
            return connection.execute(query).first() is not None

    def leader(self) -> str | None:
        for host in view_leases(self.ledgers.learn):
            if "scope:everyone" in host["holds"]:
                return str(host["host"])
        return None

    def learns_on(self, what: str, more: int = 1) -> float:
        """Wait until so many more versions serve; how long that took."""
        before, began = self.versions(), time.monotonic()
        wait_until(lambda: self.versions() >= before + more, f"learning goes on: {what}", 60)
        took = time.monotonic() - began
        print(f"\n{what}: the next version served after {took:.1f} s")
        return took


def test_any_host_may_die_or_be_cut_off(hosts: list[Host], database: Postgres, tmp_path: Path) -> None:
    def url(host: Host | None = None) -> str:
        where = f"host={database.folder}&port=55432" if host is None else f"host={host.database}&port=55432"
        return f"postgresql://postgres@/postgres?{where}"

    model = str(tiny_model(tmp_path / "model"))
    shared = [
        "--model", model, "--renderer", "qwen3", "--kernel", "float", "--num-threads", "1",
        "--policies", str(tmp_path / "shared"), "--algo", "hybrid", "--batch-size", "2",
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
    environment = {"OPENCLAW_RL_API_KEY": KEY, "HOST": "0.0.0.0", "PORT": "30000"}

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
    talk = Talk([f"http://{host.address}:30000" for host in hosts[:2]])

    def leading() -> Learner:
        return wait_until(
            lambda: next((each for each in learners if each.name and each.name == seen.leader()), None),
            "some host trains",
        )

    try:
        with talk.going_on():
            wait_until(lambda: seen.versions() >= 1, "the first version serves", 240)

            one.kill()
            seen.learns_on("a gateway was killed")
            one = gateway(hosts[0])

            hosts[1].cut()
            seen.learns_on("a gateway is cut off from the database")
            time.sleep(30)
            answered = len(talk.got)
            wait_until(lambda: len(talk.got) > answered + 3, "both gateways go on answering")
            hosts[1].mend()

            dying = leading()
            wait_until(seen.in_a_step, "a step is being made", 60)
            dying.process.kill()
            seen.learns_on("the leader was killed in a step")
            assert leading() is not dying
            dying.restart()

            cut = leading()
            cut.host.cut()
            seen.learns_on("the leader is cut off from the database")
            assert cut.process.wait(90) == EXIT_LOST, cut.log.read_text()[-2000:]
            cut.host.mend()
            cut.restart()
            seen.learns_on("everybody is back", 2)
            unsaved = f"http://{hosts[1].address}:30000/readyz"
            wait_until(lambda: httpx.get(unsaved).json()["ledger"]["num_unsaved"] == 0, "all is written")
        assert talk.problems == []
        for process in (one, other):
            process.stop()
        for each in learners:
            each.process.terminate()
            each.process.wait(60)
        _nothing_is_lost(seen.ledgers, talk)
    finally:
        for process in (one, other):
            if process.process.poll() is None:
                process.kill()
        for each in learners:
            if each.process.poll() is None:
                each.process.kill()
        seen.ledgers.close()


def _nothing_is_lost(ledgers: Ledgers, talk: Talk) -> None:
    print(f"\n{len(talk.got)} replies arrived, {talk.refused} requests found a dead gateway")
    missing = [turn_id for turn_id, _ in talk.got if ledgers.serve.turn_summary(turn_id) is None]
    assert missing == []
    wrong = [i for i, session in talk.got if ledgers.serve.turn_summary(i)["session_id"] != session]  # type: ignore[index]
    assert wrong == []
    assert ledgers.serve.check_integrity() == []
    with ledgers.learn.db.connect() as connection:
        steps = connection.execute(sa.select(samples.c.turn_id, samples.c.step)).all()
        versions = connection.execute(sa.select(policies).order_by(policies.c.version)).all()
        served = connection.execute(sa.select(swaps.c.version).order_by(swaps.c.seq)).scalars().all()
    assert max(Counter(row.turn_id for row in steps).values()) == 1
    assert [row.status for row in versions].count("serving") == 1
    assert len(served) == len(set(served)), "no version was published twice"
    at = 0
    for row in versions:  # each was made from the one that served
        if row.published_at is not None:
            assert row.parent == at
            at = row.version
    counted = Counter(row.step for row in steps if row.step is not None)
    assert all(counted[row.version] <= row.num_samples for row in versions)
