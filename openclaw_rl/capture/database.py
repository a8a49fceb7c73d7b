"""Makes SQLite and PostgreSQL behave alike: durable commits, and one writer at a time.

Writers take turns, so rows become visible in the order of their numbers. Readers and writers do not
block each other. An error never carries a user's prompt into a log.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

T = TypeVar("T")
#: Statements of normal operation never run longer; ``read_snapshot`` lifts the limit for reports.
_STATEMENT_TIMEOUT_S = 10
#: A host that is disconnected inside a transaction holds its locks for no longer than this.
_IDLE_TIMEOUT_S = 10
_LOCK_ID = 0x0C1A
_PARAMETERS = 500
PAGE_BYTES = 4096
_GUARDS = "openclaw_rl_guards"

#: Of each connection, and a process has up to ten: it fills and is never given back. What it does not hold is
#: read from the system's own cache.
_CACHE_KB = 4000

_SQLITE_SETTINGS = (
    f"page_size={PAGE_BYTES}",
    "auto_vacuum=INCREMENTAL",  # only takes effect in an empty file, so it comes before anything else
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=0",  # checkpoints run in the background, not inside a commit
    f"cache_size=-{_CACHE_KB}",
    "secure_delete=ON",  # overwrites deleted data, so that it cannot be read from free space
)

_POSTGRESQL_SETTINGS = {
    "statement_timeout": _STATEMENT_TIMEOUT_S * 1000,
    "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_S * 1000,
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "synchronous_commit": "on",
}


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def connect(url: sa.URL) -> sa.Engine:
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return _connect_postgresql(url)
    if backend == "sqlite":
        return _connect_sqlite(url)
    raise ValueError(f"unknown ledger {backend!r}; use sqlite:///PATH or postgresql://…")


def _connect_postgresql(url: sa.URL) -> sa.Engine:
    options = {
        "connect_timeout": 5,
        "options": " ".join(f"-c {name}={value}" for name, value in _POSTGRESQL_SETTINGS.items()),
        # Detect within half a minute that the server is gone; the settings above make the server do the same.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    url = url.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=options)
    except ModuleNotFoundError:
        raise ValueError("PostgreSQL needs psycopg: pip install 'openclaw-rl[postgres]'") from None


def _connect_sqlite(url: sa.URL) -> sa.Engine:
    if url.database:
        _make_private(Path(url.database))
    engine = sa.create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": _STATEMENT_TIMEOUT_S},
        # In turns, each of the pool's connections would fill a cache with the same pages.
        pool_use_lifo=True,
    )

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        for setting in _SQLITE_SETTINGS:
            _enable_wal(connection, f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # The driver's own BEGIN leaves schema changes outside the transaction, and a transaction
        # that reads first and writes later fails if another writer committed in between.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _make_private(path: Path) -> None:
    """Call before SQLite opens the file: its log and index inherit the mode. Also fixes a readable file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(OSError):  # SQLite reports what is wrong with the path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if file.is_file() and file.stat().st_uid == os.getuid():
            file.chmod(0o600)


def _enable_wal(connection: sqlite3.Connection, statement: str) -> None:
    """Entering WAL mode does not wait for another process that does the same, so retry."""
    deadline = time.monotonic() + _STATEMENT_TIMEOUT_S
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that may write. On PostgreSQL the caller then locks; see ``schema.counters``."""
    with engine.execution_options(writes=True).begin() as connection:
        for guard in engine.get_execution_options().get(_GUARDS, ()):
            guard(connection)
        yield connection


def guard_writing(engine: sa.Engine, *guards: Callable[[sa.Connection], None]) -> None:
    """Run the guards at the start of each write transaction; a guard that raises aborts it."""
    engine.update_execution_options(**{_GUARDS: guards})


def take_turns(connection: sa.Connection) -> None:
    """A guard for PostgreSQL: serialises the writers that use it, as SQLite always does."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID + 1)))


@contextmanager
def creating(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that may change the schema; two processes that start together take turns.

    ValueError if a SQLite file is damaged.
    """
    if engine.dialect.name == "sqlite" and engine.url.database:
        _check_length(Path(engine.url.database))
    try:
        with writing(engine) as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID)))
            yield connection
    except sa.exc.DatabaseError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(Path(str(engine.url.database))) from None
        raise


def _check_length(path: Path) -> None:
    """Detect at startup a file that is shorter than its header says, rather than during a request."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        return  # the missing pages may be in the log
    with suppress(OSError), path.open("rb") as file:
        head, length = file.read(100), path.stat().st_size
        page = int.from_bytes(head[16:18], "big")
        if len(head) == 100 and length < int.from_bytes(head[28:32], "big") * (65_536 if page == 1 else page):
            raise _damaged(path)


def _damaged(path: Path) -> ValueError:
    return ValueError(
        f"{path} is damaged or cut short; restore it from a backup, or move it away to begin a new one"
    )


@contextmanager
def read_snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One consistent snapshot, without timeouts, for reports that read a whole ledger."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection
        connection.rollback()


@contextmanager
def only_one(path: Path) -> Iterator[bool]:
    """True if no other process on this machine holds the file's lock, which ends with the process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False


def began(table: sa.Table, user: str | None, until: float) -> list[sa.ColumnElement[bool]]:
    """Conditions for a user's rows that were created until then; ``user`` None means everybody's."""
    mine = [] if user is None else [table.c.user == user]
    return mine if until == inf else [*mine, table.c.created_at <= until]


def batched(values: Iterable[T], size: int = _PARAMETERS) -> Iterator[list[T]]:
    """Lists short enough for the parameters of one statement."""
    remaining = iter(values)
    while batch := list(islice(remaining, size)):
        yield batch


# --- SQLite's files --------------------------------------------------------------------------


def checkpoint(engine: sa.Engine) -> int:
    """Move SQLite's log into the main file without blocking readers or writers.

    Returns the log's size in bytes if it still holds pages written meanwhile, so that it cannot
    restart and keeps growing; otherwise 0.
    """
    if engine.dialect.name != "sqlite":
        return 0
    [(_, pages, moved)] = _pragma(engine, "wal_checkpoint(PASSIVE)")
    return 0 if pages == moved else int(pages) * PAGE_BYTES


def empty_log(engine: sa.Engine, timeout_s: float = 10.0) -> bool:
    """Truncate SQLite's log, so that no old page is left in it; False if readers prevented it."""
    if engine.dialect.name != "sqlite":
        return True
    end = time.monotonic() + timeout_s
    while True:
        [(busy, _, _)] = _pragma(engine, "wal_checkpoint(TRUNCATE)")
        if not busy:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def file_pages(engine: sa.Engine) -> int:
    [(pages,)] = _pragma(engine, "page_count")
    return int(pages)


def release_pages(engine: sa.Engine, number: int) -> bool:
    """Return up to ``number`` free pages to the file system; True while there are more."""
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        # As a script: with a plain execute it frees a single page.
        raw.executescript(f"PRAGMA incremental_vacuum({number})")
    [(free,)] = _pragma(engine, "freelist_count")
    return bool(free)


def _pragma(engine: sa.Engine, command: str) -> list[tuple[Any, ...]]:
    """Run outside any transaction; some of these commands work only there."""
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        rows: list[tuple[Any, ...]] = raw.execute(f"PRAGMA {command}").fetchall()
        return rows
