"""Both kinds of ledger: SQLite files, and a real PostgreSQL started for these tests alone."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord

Require = Callable[[str, str], Path]


@dataclass
class Postgres:
    """One throw-away cluster on a Unix socket; never reachable from outside."""

    pg_ctl: Path
    folder: Path
    _unused: list[str] = field(default_factory=list)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def start(self) -> None:
        # Its durability is not under test, its behaviour is: without fsync the tests take half the time.
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._control("-o", options, "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._control("-m", mode, "stop")

    def new_database(self) -> str:
        """The URL of an empty one; making it takes longer than most tests, so they are used again."""
        if self._unused:
            return self._unused.pop()
        name = f"ledger_{uuid4().hex}"
        self._execute(self.url(), f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        return self.url(name)

    def empty(self, url: str) -> None:
        self._execute(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        self._unused.append(url)

    def _execute(self, url: str, *statements: str) -> None:
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()

    def freeze(self) -> Callable[[], None]:
        """Stop all its processes where they are, as a hung disk would; returns the way back."""
        main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        processes = [main, *map(int, children)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)

        def thaw() -> None:
            for process in processes:
                os.kill(process, signal.SIGCONT)

        return thaw

    def _control(self, *arguments: str) -> None:
        run_unprivileged(self.folder, self.pg_ctl, "-D", self.folder / "data", "-w", *arguments)


def run_unprivileged(folder: Path, *command: str | Path) -> None:
    """PostgreSQL refuses to run as root; Debian's package comes with a user for it."""
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
        **user,  # type: ignore[call-overload]
    )


def _new_cluster(require: Require) -> Iterator[Postgres]:
    initdb, pg_ctl = require("initdb", "postgresql"), require("pg_ctl", "postgresql")
    # Not pytest's folder: only root may enter that one, and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    postgres = Postgres(pg_ctl, folder)
    try:
        run_unprivileged(
            folder, initdb, "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"
        )
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop("immediate")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(require: Require) -> Iterator[Postgres]:
    """Shared by all tests; each makes a database of its own."""
    yield from _new_cluster(require)


@pytest.fixture
def own_postgres(require: Require) -> Iterator[Postgres]:
    """For a test that stops or freezes it."""
    yield from _new_cluster(require)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """``new_url("sqlite")`` is the URL of an empty database of that kind."""
    used: list[tuple[Postgres, str]] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            return sqlite_url(tmp_path / f"{uuid4().hex}.db")
        postgres: Postgres = request.getfixturevalue("postgres")
        used.append((postgres, postgres.new_database()))
        return used[-1][1]

    yield make
    for postgres, url in used:
        postgres.empty(url)


@pytest.fixture
def url(backend: str, new_url: Callable[[str], str]) -> str:
    return new_url(backend)


@pytest.fixture
def open_ledger(new_url: Callable[[str], str]) -> Iterator[Callable[[str], ServeLedger]]:
    """Ledgers that are closed after the test, before their databases are emptied."""
    opened: list[ServeLedger] = []

    def open_one(url: str) -> ServeLedger:
        opened.append(ServeLedger(url))
        return opened[-1]

    yield open_one
    for serve_ledger in opened:
        serve_ledger.close()


@pytest.fixture
def serve_ledger(url: str, open_ledger: Callable[[str], ServeLedger]) -> ServeLedger:
    return open_ledger(url)


@pytest.fixture
def learn_ledger(backend: str, url: str, tmp_path: Path) -> Iterator[LearnLedger]:
    """Beside the ledger: a file of its own, or the same PostgreSQL database."""
    learn_ledger = LearnLedger(url if backend == "postgresql" else sqlite_url(tmp_path / "learn.db"))
    yield learn_ledger
    learn_ledger.close()


def make_turn(
    turn_id: str = "t1",
    session_id: str = "s1",
    *,
    messages: list[Json] | None = None,
    text: str = "Hello!",
    prompt_ids: list[int] | None = None,
    user: str = "alice",
    created_at: float = 1_700_000_000.0,
    num_tokens: int = 3,
    **other: object,
) -> TurnRecord:
    tokens = [
        Token(100 + i, -0.5 * i, -0.25 * i, (100 + i, 7), (-0.5 * i, -3.0), policy_version=0)
        for i in range(num_tokens)
    ]
    fields: Json = {
        "dialect": "chat",
        "kind": "unknown",
        "messages": messages if messages is not None else [{"role": "user", "content": "Hi"}],
        "tools": None,
        "params": {"model": "m", "stream": True},
        "reply": {"role": "assistant", "content": text},
        "prompt_ids": prompt_ids if prompt_ids is not None else [1, 2, 3],
        "tokens": tokens,
        "sampling": SamplingParams(max_tokens=16),
        "policy_version": 0,
        "finish_reason": "stop",
    }
    return TurnRecord(
        id=turn_id, session_id=session_id, user=user, created_at=created_at, **{**fields, **other}
    )
