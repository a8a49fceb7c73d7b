"""200 notices of reactions through OpenClaw's plugin: each rates the reply its message shows, or nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.testing import ScriptedEngine, scripted_system
from tests.listening import listening

REPLAY = Path(__file__).parent / "replay_reactions.mjs"


@pytest.mark.node
def test_200_replayed_notices_rate_the_replies_they_are_about(
    tmp_path: Path, require: Callable[[str, str], Path]
) -> None:
    system = scripted_system(tmp_path / "home")
    assert isinstance(system.engine, ScriptedEngine)
    for number in range(40):
        system.engine.say(f"This is **reply** number {number}, all of it.")
    with listening(system) as url:
        arguments = [require("node", "nodejs"), REPLAY, url, system.keys.key_of("default")]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout)
    rated = {turn: system.dashboard.feedback_of(turn) for turn in expected}
    assert len(expected) == 40
    assert {turn: events[-1]["score"] if events else 0 for turn, events in rated.items()} == expected
    assert {1, -1} <= set(expected.values())
    turns = [turn.id for session, _ in system.ledgers.serve.iter_sessions() for turn in session]
    assert [turn for turn in turns if turn not in expected and system.dashboard.feedback_of(turn)] == []
    assert sum(map(len, rated.values())) > 30
