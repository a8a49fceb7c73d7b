"""SQLite keeps pages in memory for each connection, and gives none of them back: they are few."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.database import sqlite_url
from tests.soak.memory import parts

#: Of a ledger in one process, whatever is read of it by as many threads as there may be.
_MOST_MB = 30.0
_THREADS, _ROWS, _BYTES = 16, 48_000, 1000


@pytest.fixture
def large(tmp_path: Path) -> sa.Engine:
    """48 MB."""
    engine = database.connect(sa.make_url(sqlite_url(tmp_path / "large.db")))
    with database.writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE large (number INTEGER PRIMARY KEY, text BLOB)")
        rows = [(number, bytes(_BYTES)) for number in range(_ROWS)]
        connection.exec_driver_sql("INSERT INTO large VALUES (?, ?)", rows)
    database.empty_log(engine)
    return engine


def read_all(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT SUM(LENGTH(text)) FROM large").scalar_one()
        assert found == _ROWS * _BYTES


def at_once(act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_large_ledger_does_not_fill_the_memory(large: sa.Engine) -> None:
    if "sqlite" not in (before := parts()):
        pytest.skip("this Python does not say how much memory SQLite uses")
    at_once(lambda: read_all(large))
    with closing(large.raw_connection()):
        assert parts()["sqlite"] - before["sqlite"] < _MOST_MB
    large.dispose()


def test_what_reads_one_after_the_other_shares_a_cache(large: sa.Engine) -> None:
    at_once(lambda: read_all(large))  # the pool is full
    used = set()
    for _ in range(_THREADS):
        with closing(large.raw_connection()) as connection:
            used.add(id(connection.driver_connection))
    assert len(used) == 1
    large.dispose()
