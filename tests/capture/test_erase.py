"""A wish, or what is left of one, goes with the turns it was taught from; nobody asks for another's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.capture.wishes import Wishes, list_wishes
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample

COMPLAINT = Verdict(-1, 0.9, "llm", hints=("Call me Rumpelstiltskin.",))


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Ledgers]:
    serve, learn = (sqlite_url(tmp_path / name) for name in ("serve.db", "learn.db"))
    found = Ledgers.of(ServeLedger(serve), LearnLedger(learn))
    for turn_id, session, user in (("t1", "s1", "alice"), ("t2", "s2", "alice"), ("t3", "s3", "ben")):
        turn = make_turn(turn_id, session, user=user)
        add_sample(found.serve, found.learn, turn, COMPLAINT)
        if turn_id != "t2":
            Wishes(found.learn, lambda new, old: "other", lambda new, old: False).take_up(turn, "Short.", 0)
    yield found
    found.close()


def test_a_wish_goes_with_its_turn(ledgers: Ledgers, tmp_path: Path) -> None:
    forgetting = Forgetting(tmp_path, ledgers, PolicyStore(tmp_path / "policies"))
    assert forgetting.forget("wish", "t1", user="ben") is None
    assert forgetting.forget("wish", "t9") is None
    receipt = forgetting.forget("wish", "t1", user="alice")
    assert receipt is not None
    assert (receipt["num_turns"], receipt["state"]) == (1, "done")
    assert [wish.user for wish in list_wishes(ledgers.learn, None)] == ["ben"]
    assert ledgers.serve.load_turn("t1") is None
    assert ledgers.learn.verdict("t1") is None
    assert ledgers.policies.examples_of("t1") == []
    assert ledgers.serve.load_turn("t2") is not None
    assert ledgers.serve.counts()["turns"] == 2


def test_a_wish_whose_turn_was_pruned_goes_too(ledgers: Ledgers, tmp_path: Path) -> None:
    prune(ledgers.serve, older_than_s=1.0)
    forgetting = Forgetting(tmp_path, ledgers, PolicyStore(tmp_path / "policies"))
    assert forgetting.forget("wish", "t1") is not None
    assert [wish.user for wish in list_wishes(ledgers.learn, None)] == ["ben"]


def test_a_verdict_never_gets_the_number_of_one_that_was_forgotten(ledgers: Ledgers, tmp_path: Path) -> None:
    """It would count as read: the next complaint would not be learned."""
    forgetting = Forgetting(tmp_path, ledgers, PolicyStore(tmp_path / "policies"))
    assert forgetting.forget("turn", "t3") is not None
    assert ledgers.policies.pending(10) == []
    with ledgers.learn.db.begin() as connection:
        ledgers.learn._add_verdict(connection, "t2", COMPLAINT)
    assert ledgers.policies.pending(10) == [(4, "t2")]


def test_nobody_without_turns_gets_a_receipt(ledgers: Ledgers, tmp_path: Path) -> None:
    forgetting = Forgetting(tmp_path, ledgers, PolicyStore(tmp_path / "policies"))
    assert forgetting.forget("user", "nobody") is None
    assert not (tmp_path / "forgotten").exists()
