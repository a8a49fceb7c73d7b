"""A person gets everything about them, and nothing about anybody else."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest

from openclaw_rl.capture.events import NEXT_STATE, TurnEvent
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample


def test_all_of_one_person_and_nothing_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = ServeLedger(sqlite_url(tmp_path / "serve.db"))
    learn = LearnLedger(sqlite_url(tmp_path / "learn.db"))
    said = [{"role": "user", "content": "shorter, please"}]
    for turn_id, session, user in (("t1", "s1", "ann"), ("t2", "s2", "ben")):
        turn = make_turn(turn_id, session, user=user)
        add_sample(serve, learn, turn, Verdict(-1, 0.9, "llm", hints=(f"{user} likes it short",)))
        serve.append([TurnEvent(turn_id, NEXT_STATE, 1.0, said)])
    serve.close()
    learn.close()
    file = tmp_path / "ann.zip"
    assert main(["data", "export", str(file), "--user", "ann", "--home", str(tmp_path)]) in (0, None)
    assert "1 turns of ann" in capsys.readouterr().err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(texts) == {
        "README.txt", "sessions.jsonl", "events.jsonl", "verdicts.jsonl", "samples.jsonl", "wishes.json",
        "settings.json", "conversations.jsonl",
    }  # fmt: skip
    assert json.loads(texts["sessions.jsonl"])["turns"][0]["id"] == "t1"
    assert "shorter, please" in texts["events.jsonl"]
    assert "ann likes it short" in texts["verdicts.jsonl"]
    assert json.loads(texts["samples.jsonl"])["user"] == "ann"
    assert "ben" not in "".join(texts.values())
