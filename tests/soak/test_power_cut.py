"""A power cut at any moment: what was acknowledged is there, and the ledgers are sound.

A process writes while every write and every sync of it is written down. For many moments the files are then
put together as a disk might have them: all that was synced, and of the rest any part, also half a write.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from tests.conftest import Require

SEED, NUM_CUTS = 20, 150
SECTOR = 512

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


@dataclass(frozen=True)
class Step:
    kind: str
    offset: int
    path: str
    data: bytes


def read_trace(file: Path, folder: Path) -> Iterator[Step]:
    data, at = file.read_bytes(), 0
    while at < len(data):
        kind = chr(data[at])
        offset, length, size = (int.from_bytes(data[at + i : at + i + 8], "little") for i in (1, 9, 17))
        path = data[at + 25 : at + 25 + size].decode()
        at += 25 + size
        body = data[at : at + length] if kind == "w" else b""
        at += len(body)
        yield Step(kind, offset, path.removeprefix(f"{folder}/"), body)


def after_a_cut(steps: list[Step], at: int, chance: random.Random) -> dict[str, bytes]:
    """The files as a disk might have them if the power went after so many steps."""
    files: dict[str, bytearray] = {}
    waiting: dict[str, list[Step]] = {}
    for step in steps[:at]:
        if step.kind == "u":
            files.pop(step.path, None)
            waiting.pop(step.path, None)
        elif step.kind == "s":
            for each in waiting.pop(step.path, []):
                apply(files, each, len(each.data))
        else:
            waiting.setdefault(step.path, []).append(step)
    for pending in waiting.values():
        for each in pending:
            fate = chance.random()
            if fate < 0.4:
                apply(files, each, len(each.data))
            elif fate < 0.6 and each.kind == "w":
                apply(files, each, chance.randrange(0, len(each.data) + 1) // SECTOR * SECTOR)
    return {name: bytes(content) for name, content in files.items() if not name.endswith("-shm")}


def apply(files: dict[str, bytearray], step: Step, length: int) -> None:
    content = files.setdefault(step.path, bytearray())
    if step.kind == "t":
        del content[step.offset :]
        content.extend(bytes(step.offset - len(content)))
        return
    content.extend(bytes(max(0, step.offset - len(content))))
    content[step.offset : step.offset + length] = step.data[:length]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, require: Require) -> list[Step]:
    folder = tmp_path_factory.mktemp("trace")
    library, home = folder / "write_trace.so", folder / "home"
    home.mkdir()
    compiler = require("cc", "build-essential")
    source = Path(__file__).with_name("write_trace.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True
    )
    tracing = {"LD_PRELOAD": str(library), "TRACE_DIR": str(home), "TRACE_FILE": str(folder / "trace")}
    subprocess.run([sys.executable, "-c", WRITER, str(home)], env={**os.environ, **tracing}, check=True)
    return list(read_trace(folder / "trace", home))


def test_the_trace_is_whole(steps: list[Step]) -> None:
    """Put together to the end, it is what was written; or the cuts below would prove nothing."""
    acks = b"".join(step.data for step in steps if step.path == "acks").decode().split("\n")
    assert sum(line.startswith("turn") for line in acks) == 40
    assert sum(line.startswith("verdict") for line in acks) >= 10
    left = after_a_cut(steps, len(steps), random.Random(0)).keys()
    assert left <= {"serve.db", "learn.db", "serve.db-wal", "learn.db-wal", "acks"}
    assert {step.path for step in steps if step.kind == "s"} >= {"serve.db-wal", "learn.db-wal", "serve.db"}


def test_whatever_was_acknowledged_survives_a_cut_at_any_moment(steps: list[Step], tmp_path: Path) -> None:
    chance = random.Random(SEED)
    opened = next(i for i, step in enumerate(steps) if step.path == "acks")
    for number in range(NUM_CUTS):
        at = chance.randrange(opened + 1, len(steps) + 1)
        home = tmp_path / str(number)
        home.mkdir()
        for name, content in after_a_cut(steps, at, chance).items():
            if name != "acks":
                (home / name).write_bytes(content)
        acked = b"".join(step.data for step in steps[:at] if step.path == "acks").decode().split("\n")
        check(home, [line.split() for line in acked if line and line != "open"], f"seed {SEED}, cut {number}")


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
