"""The ledgers' contract, on SQLite files and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.capture.database import sqlite_url
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.testing.contracts import LedgerContract


class TestLedgers(LedgerContract):
    @pytest.fixture
    def open_ledgers(self, backend: str, url: str, tmp_path: Path) -> Iterator[Callable[[], Ledgers]]:
        opened: list[Ledgers] = []
        learn_url = url if backend == "postgresql" else sqlite_url(tmp_path / "learn.db")

        def open_them() -> Ledgers:
            opened.append(Ledgers.of(ServeLedger(url), LearnLedger(learn_url)))
            return opened[-1]

        yield open_them
        for ledgers in opened:
            ledgers.close()
