"""Nothing that people said is left of a pruned turn, wherever it was kept."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from openclaw_rl.capture.learn_ledger import LearnLedger, metadata
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.wishes import Wishes
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample

SECRET = "Call me Rumpelstiltskin."
COMPLAINT = Verdict(
    -1, 0.9, "rule:tool_error", hints=(SECRET,), reason=f"the tool reported an error: {SECRET}"
)


def contents(learn_ledger: LearnLedger) -> str:
    with learn_ledger.db.connect() as connection:
        rows = [
            connection.execute(sa.select(metadata.tables[name])).all()
            for name in ("verdicts", "samples", "wishes", "judge_tasks")
        ]
    return str(rows)


def test_words_go_and_rows_stay(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    old = replace(make_turn("t1"), created_at=1.0)
    policies = add_sample(serve_ledger, learn_ledger, old, COMPLAINT)
    claimed = policies.claim(1, 0, "")
    assert claimed is not None
    assert policies.publish(claimed.version, {})
    wishes = Wishes(learn_ledger, lambda new, old: "other", lambda new, old: False)
    wishes.take_up(old, SECRET, 0)
    assert "Rumpel" in contents(learn_ledger)
    prune(serve_ledger, older_than_s=1e6, learn_ledger=learn_ledger)
    assert "Rumpel" not in contents(learn_ledger)
    assert policies.examples_of("t1") == []
    assert wishes.texts("alice", "everyone") == ()
    assert len(wishes.of_user("alice", "everyone", ("pruned",))) == 1
    assert policies.scores_of(0) == [-1]
    sample = policies.of_turn("t1")
    assert sample is not None
    assert sample["status"] == "trained"


def test_what_is_not_pruned_keeps_its_words(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    policies = add_sample(serve_ledger, learn_ledger, replace(make_turn("t1"), created_at=1.0), COMPLAINT)
    recent = make_turn("t2", "s2", created_at=4e9)
    add_sample(serve_ledger, learn_ledger, recent, COMPLAINT)
    prune(serve_ledger, older_than_s=1e6, learn_ledger=learn_ledger)
    assert learn_ledger.verdict("t2") == COMPLAINT
    assert policies.examples_of("t2")
