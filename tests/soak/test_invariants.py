"""What the kills are checked with finds what it should; otherwise a thousand kills would prove nothing."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from openclaw_rl.capture import database
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from tests.capture.conftest import make_turn
from tests.soak.invariants import check_all, is_being_written
from tests.soak.people import Acknowledged


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One turn, excluded by its user."""
    (tmp_path / "keys.json").write_text(json.dumps({"default": "key"}))
    with closing(ServeLedger(sqlite_url(tmp_path / "serve.db"))) as serve:
        serve.append([make_turn("t1"), TurnEvent("t1", "exclude", 2.0)])
    LearnLedger(sqlite_url(tmp_path / "learn.db")).close()
    return tmp_path


def acknowledged(home: Path) -> Acknowledged:
    with closing(ServeLedger(sqlite_url(home / "serve.db"))) as serve:
        turn = serve.load_turn("t1")
    assert turn is not None
    known = Acknowledged(turns={"t1": (turn.session_id, 1e12)}, num_tokens={"t1": len(turn.tokens)})
    return known


def check(home: Path, known: Acknowledged) -> None:
    check_all(home, known, random.Random(0), None)


def test_a_sound_folder_passes(home: Path) -> None:
    known = acknowledged(home)
    known.excluded.add("t1")
    check(home, known)


@pytest.mark.parametrize(
    ("fault", "finding"),
    {
        "a turn": (lambda known: known.turns.update(t2=("s2", 1e12)), "acknowledged, and gone"),
        "feedback": (lambda known: known.rated.add("t1"), "feedback of t1 is gone"),
        "a token": (lambda known: known.num_tokens.update(t1=99), "the reply said 99"),
        "a background reply": (lambda known: known.background.update(r1=1e12), "that were begun"),
        "forgotten words": (lambda known: known.forgotten.add("t1"), "was forgotten and is there"),
        "a key": (lambda known: known.keys.update(ann="key of ann"), "keys that were given out"),
    }.values(),
)
def test_what_is_lost_is_found(home: Path, fault, finding: str) -> None:  # type: ignore[no-untyped-def]
    known = acknowledged(home)
    fault(known)
    with pytest.raises(AssertionError, match=finding):
        check(home, known)


def test_a_write_in_progress_is_found(home: Path) -> None:
    assert not is_being_written(home)
    with closing(LearnLedger(sqlite_url(home / "learn.db"))) as learn, database.writing(learn.db):
        assert is_being_written(home)
