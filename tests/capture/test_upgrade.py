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

from openclaw_rl.capture.desk import LedgerDesk
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger, sqlite_url
from openclaw_rl.capture.lineage import Lineage
from openclaw_rl.types import EVERYONE, NO_SIGNAL, Verdict

OLD = Path(__file__).with_name("ledger-0.1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for file in OLD.iterdir():
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return tmp_path


@pytest.fixture
def lineage(home: Path) -> Iterator[Lineage]:
    ledger, journal = Ledger(sqlite_url(home / "serve.db")), Journal(sqlite_url(home / "learn.db"))
    yield Lineage(ledger, journal)
    journal.close()
    ledger.close()


def test_turns_verdicts_and_versions_are_read(lineage: Lineage) -> None:
    turn = lineage._ledger.load_turn("chatcmpl-0")
    assert turn is not None
    assert [token.id for token in turn.tokens] == [100, 101, 102]
    assert turn.reply["content"] == "Answer 0."
    assert lineage.serving() == 1
    [policy] = lineage.list_policies()
    assert (policy.version, policy.parent, policy.status, policy.scope) == (1, 0, "serving", EVERYONE)
    judged = lineage.judged("chatcmpl-2")
    assert judged is not None
    assert judged[1].hints == ("Shorter, please.",)


def test_samples_become_examples(lineage: Lineage) -> None:
    first, second = lineage.items(1)
    assert first.source.turn_ids == ("chatcmpl-0",)
    assert (first.source.kind, first.source.score, first.source.hint) == ("own", -1, "Shorter, please.")
    assert first.prompt_ids == [1, 2, 3]
    assert first.reply_ids == [100, 101, 102]
    assert first.signal_NK.tolist() == [[-0.25, -0.25]] * 3
    assert first.signal_NK.max() < NO_SIGNAL
    assert (second.source.user, second.strength, second.num_free) == ("ann", 0.05, 3)
    [retold] = lineage.examples_of("chatcmpl-3")
    assert (retold.source.kind, retold.prompt_ids) == ("accepted", [9, 9, 9])


def test_learning_goes_on(lineage: Lineage) -> None:
    assert lineage.waiting()[0] == 2
    policy = lineage.claim(2, lineage.serving(), "f" * 16)
    assert policy is not None
    assert policy.version == 2
    assert [e.source.turn_ids[0] for e in lineage.items(2)] == ["chatcmpl-2", "chatcmpl-3"]
    lineage.trained(2, {"loss": 0.4})
    assert lineage.publish(2, {"passed": True})
    assert lineage.serving() == 2
    desk = LedgerDesk(lineage._ledger, lineage._journal, lambda _, messages: messages, idle_s=1e12)
    desk.settle("chatcmpl-4", Verdict(-1, 0.9, "votes", (-1, -1, -1), ("Shorter, please.",)))
    assert [turn_id for _, turn_id in lineage.pending(5)] == ["chatcmpl-4"]


def test_opening_it_twice_changes_nothing_more(home: Path) -> None:
    for _ in range(2):
        journal = Journal(sqlite_url(home / "learn.db"))
        with journal.db.connect() as connection:
            versions = list(connection.scalars(sa.text("SELECT version FROM learn_schema_version")))
        journal.close()
    assert versions == list(range(1, len(versions) + 1))
