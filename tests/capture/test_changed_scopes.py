"""Which scopes the learn process has to look at, however many people there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import policies
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.types import EVERYONE

from .conftest import make_turn
from .steps import add_sample


def test_only_scopes_in_which_something_happened(tmp_path: Path) -> None:
    serve, learn = ServeLedger(sqlite_url(tmp_path / "serve.db")), LearnLedger(sqlite_url(tmp_path / "l.db"))
    ledger = PolicyLedger(serve, learn)
    with learn.db.begin() as connection:
        for version in range(1, 6):
            connection.execute(
                policies.insert().values(
                    version=version, parent=0, status="serving", created_at=1.0, num_samples=1,
                    config_hash="", metrics="{}", gate="{}", scope=f"user:{version}",
                )
            )  # fmt: skip
    everybody, seen = ledger.changed_scopes(None)
    assert everybody == [EVERYONE, *(f"user:{n}" for n in range(1, 6))], "at first all of them"
    assert ledger.changed_scopes(seen)[0] == [EVERYONE]
    add_sample(serve, learn, make_turn("t1", scope="user:2"))
    assert ledger.waiting_scopes() == ["user:2"]
    found, seen = ledger.changed_scopes(seen)
    assert found == [EVERYONE, "user:2"]
    made = ledger.claim(1, 0, "", 0, "user:2")
    assert made is not None
    assert ledger.changed_scopes(seen)[0] == [EVERYONE], "its sample is claimed, and the verdict was seen"
    ledger.promote(4, "a test", "user:4")
    found, seen = ledger.changed_scopes(seen)
    assert found == [EVERYONE, "user:4"]
    with learn.db.begin() as connection:
        learn.set_mark(connection, "flush_asked:user:5", 9.0)
    assert ledger.changed_scopes(seen)[0] == [EVERYONE, "user:5"]
    learn.flushed(9.0, "user:5")
    assert ledger.changed_scopes(seen)[0] == [EVERYONE]
    assert ledger.changed_scopes(replace(seen, at=seen.at - 61))[0] == everybody, "now and then all of them"
    serve.close()
    learn.close()
