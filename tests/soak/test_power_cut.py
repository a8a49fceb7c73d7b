"""A power cut at any moment: what was acknowledged is there, and the ledgers are sound.

A process writes while every write and every sync of it is written down. For many moments the files are then
put together as a disk might have them: all that was synced, and of the rest any part, also half a write.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from tests.conftest import Require
from tests.soak.power import ACKS, Step, acked, after_a_cut, put_back, record

SEED, NUM_CUTS = 20, 150

#: Appends turns, events and verdicts, empties the logs now and then, and says after each what is durable.
WRITER = """
import sys, os
from pathlib import Path
from openclaw_rl.capture import database
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.types import SamplingParams, Token, TurnRecord, Verdict
home = Path(sys.argv[1])
serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
queue = LedgerJudgeQueue(serve, learn, 1800)
acks = os.open(home / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def ack(line): os.write(acks, (line + chr(10)).encode())
def turn(number):
    token = Token(5, -0.1, -0.1, (5, 6), (-0.1, -2.0), 0, False, "stop")
    return TurnRecord(f"t{number}", f"s{number % 5}", "default", "chat", "main",
        [{"role": "user", "content": f"question {number} " + "x" * 700}], None, {}, {"role": "assistant",
        "content": f"reply {number}"}, [1, 2, 3], [token], SamplingParams(8), 0, "stop", 1000.0 + number)
ack("open")
for number in range(40):
    serve.append([turn(number)])
    ack(f"turn t{number}")
    if number % 3 == 0:
        said = {"score": -1, "text": "no", "by": "default"}
        serve.append([TurnEvent(f"t{number}", "feedback", 2000.0, data=said)])
        ack(f"event t{number}")
    if number % 4 == 3:
        queue.pull()
        for turn_id in queue.ready(10, 3000.0):
            queue.settle(turn_id, Verdict(-1, 0.9, "feedback"))
            ack(f"verdict {turn_id}")
    if number % 10 == 9:
        serve.checkpoint()
        database.checkpoint(learn.db)
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, require: Require) -> list[Step]:
    compiler = require("cc", "build-essential")
    return record(compiler, tmp_path_factory.mktemp("trace"), WRITER)


def test_the_trace_is_whole(steps: list[Step]) -> None:
    """Put together to the end, it is what was written; or the cuts below would prove nothing."""
    lines = acked(steps)
    assert sum(line.startswith("turn") for line in lines) == 40
    assert sum(line.startswith("verdict") for line in lines) >= 10
    left = after_a_cut(steps, len(steps), random.Random(0)).keys()
    assert left <= {"serve.db", "learn.db", "serve.db-wal", "learn.db-wal"}
    assert {step.path for step in steps if step.kind == "s"} >= {"serve.db-wal", "learn.db-wal", "serve.db"}


def test_whatever_was_acknowledged_survives_a_cut_at_any_moment(steps: list[Step], tmp_path: Path) -> None:
    chance = random.Random(SEED)
    opened = next(i for i, step in enumerate(steps) if step.path == ACKS and step.kind == "w")
    for number in range(NUM_CUTS):
        at = chance.randrange(opened + 1, len(steps) + 1)
        home = tmp_path / str(number)
        home.mkdir()
        put_back(after_a_cut(steps, at, chance), home)
        said = [line.split() for line in acked(steps[:at]) if line != "open"]
        check(home, said, f"seed {SEED}, cut {number}")


def check(home: Path, acked: list[list[str]], where: str) -> None:
    serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
    try:
        assert serve.check_integrity() == [], where
        for kind, turn_id in acked:
            if kind == "turn":
                assert serve.load_turn(turn_id) is not None, f"{where}: {turn_id} is gone"
            elif kind == "event":
                assert serve.events_of(turn_id), f"{where}: feedback on {turn_id} is gone"
            else:
                assert learn.verdict(turn_id) is not None, f"{where}: the verdict on {turn_id} is gone"
        turns, _ = learn.cursors()
        assert turns <= serve.counts()["turns"], f"{where}: learn knows of turns that serve does not"
    finally:
        serve.close()
        learn.close()
