"""What is forgotten while learn works on its verdict does not come back, and nothing fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import database
from openclaw_rl.capture.learn_ledger import LearnLedger, verdicts
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.capture.wishes import wish_turns, wishes
from openclaw_rl.types import TurnRecord

from .conftest import make_turn
from .steps import COMPLAINT, example_of


class Judged:
    """One complaint; ``forget`` is what another process does."""

    def __init__(self, serve: ServeLedger, learn: LearnLedger) -> None:
        self.turn: TurnRecord = make_turn("t1")
        serve.append([self.turn])
        self.policies, self._db = PolicyLedger(serve, learn), learn.db
        with database.writing(learn.db) as connection:
            learn._add_verdict(connection, "t1", COMPLAINT)
        [(self.seq, _)] = self.policies.pending(10)
        self.wishes = self.policies.wishes(
            lambda new, old: "other", lambda new, old: False, lambda text: True
        )

    def forget(self) -> None:
        with database.writing(self._db) as connection:
            for table in (verdicts, wish_turns):
                connection.execute(table.delete())

    def rows(self, table: sa.Table) -> int:
        with self._db.connect() as connection:
            return len(connection.execute(sa.select(table)).all())


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judged]:
    with (
        closing(ServeLedger(sqlite_url(tmp_path / "serve.db"))) as serve,
        closing(LearnLedger(sqlite_url(tmp_path / "learn.db"))) as learn,
    ):
        yield Judged(serve, learn)


def test_its_verdict_is_passed_over(judged: Judged) -> None:
    judged.forget()
    judged.policies.skip(judged.seq)
    assert judged.policies.pending(10) == []


def test_it_becomes_no_sample(judged: Judged) -> None:
    judged.forget()
    judged.policies.settle(judged.seq, judged.turn, COMPLAINT, [example_of(judged.turn, COMPLAINT)])
    assert judged.rows(samples) == 0


@pytest.mark.parametrize("forgotten", [True, False])
def test_its_words_become_no_wish(judged: Judged, forgotten: bool) -> None:
    if forgotten:
        judged.forget()
    judged.wishes.take_up(judged.turn, "Be brief.", 0, judged.seq)
    assert judged.rows(wishes) == (0 if forgotten else 1)


def test_it_is_no_evidence_for_a_wish_that_stays(judged: Judged) -> None:
    judged.wishes.take_up(judged.turn, "Be brief.", 0, judged.seq)
    assert judged.rows(wish_turns) == 1
    judged.forget()
    judged.wishes.take_up(judged.turn, "Be brief.", 0, judged.seq)
    assert (judged.rows(wishes), judged.rows(wish_turns)) == (1, 0)
