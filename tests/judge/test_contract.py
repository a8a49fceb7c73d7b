"""The judge's contract, against those that need no model: rules, the fake, and the example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openclaw_rl.judge import JudgeParts, create_judge
from openclaw_rl.testing import WordJudge
from openclaw_rl.testing.contracts import JudgeContract
from openclaw_rl.types import Judge

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestRules(JudgeContract):
    @pytest.fixture
    def judge(self) -> Judge:
        return create_judge("rules", JudgeParts())


class TestWords(JudgeContract):
    @pytest.fixture
    def judge(self) -> Judge:
        return WordJudge()


class TestExample(JudgeContract):
    @pytest.fixture
    def judge(self, monkeypatch: pytest.MonkeyPatch) -> Judge:
        monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
        return create_judge("my_judge:ShortIsGood", JudgeParts())
