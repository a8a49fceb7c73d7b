"""A data folder written by version 0.1 is opened by this one, and learning goes on where it stopped.

``ledger-0.1`` holds both databases as that version left them: five turns, four of them judged, two trained
into version 1, which serves. The files are never written again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.types import EVERYONE, NO_SIGNAL, Verdict

OLD = Path(__file__).with_name("ledger-0.1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for file in OLD.iterdir():
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return tmp_path


@pytest.fixture
def policy_ledger(home: Path) -> Iterator[PolicyLedger]:
    serve_ledger, learn_ledger = (
        ServeLedger(sqlite_url(home / "serve.db")),
        LearnLedger(sqlite_url(home / "learn.db")),
    )
    yield PolicyLedger(serve_ledger, learn_ledger)
    learn_ledger.close()
    serve_ledger.close()


def test_turns_verdicts_and_versions_are_read(policy_ledger: PolicyLedger) -> None:
    turn = policy_ledger._serve_ledger.load_turn("chatcmpl-0")
    assert turn is not None
    assert [token.id for token in turn.tokens] == [100, 101, 102]
    assert turn.reply["content"] == "Answer 0."
    assert policy_ledger.serving() == 1
    [policy] = policy_ledger.list_policies()
    assert (policy.version, policy.parent, policy.status, policy.scope) == (1, 0, "serving", EVERYONE)
    judged = policy_ledger.judged("chatcmpl-2")
    assert judged is not None
    assert judged[1].hints == ("Shorter, please.",)


def test_samples_become_examples(policy_ledger: PolicyLedger) -> None:
    first, second = policy_ledger.items(1)
    assert first.source.turn_ids == ("chatcmpl-0",)
    assert (first.source.kind, first.source.score, first.source.hint) == ("own", -1, "Shorter, please.")
    assert first.prompt_ids == [1, 2, 3]
    assert first.reply_ids == [100, 101, 102]
    assert first.signal_NK.tolist() == [[-0.25, -0.25]] * 3
    assert first.signal_NK.max() < NO_SIGNAL
    assert (second.source.user, second.strength, second.num_free) == ("ann", 0.05, 3)
    [retold] = policy_ledger.examples_of("chatcmpl-3")
    assert (retold.source.kind, retold.prompt_ids) == ("accepted", [9, 9, 9])


def test_learning_goes_on(policy_ledger: PolicyLedger) -> None:
    assert policy_ledger.waiting()[0] == 2
    policy = policy_ledger.claim(2, policy_ledger.serving(), "f" * 16)
    assert policy is not None
    assert policy.version == 2
    assert [e.source.turn_ids[0] for e in policy_ledger.items(2)] == ["chatcmpl-2", "chatcmpl-3"]
    policy_ledger.trained(2, {"loss": 0.4})
    assert policy_ledger.publish(2, {"passed": True})
    assert policy_ledger.serving() == 2
    judge_queue = LedgerJudgeQueue(policy_ledger._serve_ledger, policy_ledger._learn_ledger, idle_s=1e12)
    judge_queue.settle("chatcmpl-4", Verdict(-1, 0.9, "votes", (-1, -1, -1), ("Shorter, please.",)))
    assert [turn_id for _, turn_id in policy_ledger.pending(5)] == ["chatcmpl-4"]


def test_opening_it_twice_changes_nothing_more(home: Path) -> None:
    for _ in range(2):
        learn_ledger = LearnLedger(sqlite_url(home / "learn.db"))
        with learn_ledger.db.connect() as connection:
            versions = list(connection.scalars(sa.text("SELECT version FROM learn_schema_version")))
        learn_ledger.close()
    assert versions == list(range(1, len(versions) + 1))
