"""What is asked again and again reads what it needs: no scan of all samples, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.learned import view_rewards
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample


@pytest.fixture
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyLedger]:
    folder = tmp_path_factory.mktemp("ledgers")
    serve, learn = ServeLedger(sqlite_url(folder / "s.db")), LearnLedger(sqlite_url(folder / "l.db"))
    for n in range(4):
        add_sample(
            serve, learn, make_turn(f"t{n}", created_at=float(n)), Verdict(1 - 2 * (n % 2), 1.0, "votes")
        )
    yield PolicyLedger(serve, learn)
    learn.close()
    serve.close()


@contextmanager
def asked(db: sa.Engine) -> Iterator[list[tuple[str, object]]]:
    """The queries of a block, with their values."""
    found: list[tuple[str, object]] = []

    def note(connection: object, cursor: object, statement: str, values: object, *rest: object) -> None:
        if statement.startswith(("SELECT", "WITH")):
            found.append((statement, values))

    sa.event.listen(db, "before_cursor_execute", note)
    yield found
    sa.event.remove(db, "before_cursor_execute", note)


def plan(db: sa.Engine, statement: str, values: object) -> list[str]:
    with db.connect() as connection:
        return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]  # type: ignore[arg-type]


CALLS: dict[str, Callable[[PolicyLedger], object]] = {
    "claim": lambda policies: policies.claim(2, 0, "", replay=4),
    "waiting": lambda policies: policies.waiting(),
    "full batch": lambda policies: policies.full_batch(4),
    "scopes": lambda policies: policies.scopes(),
    "held out": lambda policies: policies.held_out(8),
    "pool": lambda policies: policies.pool("everyone", lambda user: "", 16),
    "scores": lambda policies: policies.scores_of(0),
    "reactions": lambda policies: policies.reactions([2, 1, 0]),
    "items": lambda policies: policies.items(1),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_query_of_a_round_scans_the_samples(policies: PolicyLedger, name: str) -> None:
    with asked(policies.db) as queries:
        CALLS[name](policies)
    assert queries
    for query in queries:
        scans = [step for step in plan(policies.db, *query) if step.startswith("SCAN samples")]
        assert not scans, query


@pytest.mark.parametrize("name", ["claim", "full batch", "held out"])
def test_what_is_wanted_in_order_is_stored_in_order(policies: PolicyLedger, name: str) -> None:
    """Where people are put in order, there are few of them."""
    with asked(policies.db) as queries:
        CALLS[name](policies)
    for query in queries:
        if "RECURSIVE" not in query[0]:
            assert not [step for step in plan(policies.db, *query) if "TEMP B-TREE" in step], query


@pytest.mark.parametrize("user", [None, "alice"])
def test_a_curve_is_read_from_an_index_and_has_an_end(policies: PolicyLedger, user: str | None) -> None:
    with asked(policies.db) as queries:
        view_rewards(policies, user)
    curves = [query for query in queries if "samples" in query[0]]
    assert curves
    for query in curves:
        steps = [step for step in plan(policies.db, *query) if "samples" in step]
        assert steps
        assert all("COVERING INDEX" in step for step in steps), steps
        assert "LIMIT" in query[0]
