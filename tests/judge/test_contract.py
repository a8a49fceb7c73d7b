"""The judge's contract, against every judge; that on an endpoint is in ``test_endpoint.py``.

Models are scripted here: what a real one thinks of cases is in ``test_judges.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openclaw_rl.judge import AnswerJudge, JudgeParts, LabelJudge, ModelJudge, create_judge
from openclaw_rl.judge.model_judge import Loaded
from openclaw_rl.render import create_renderer
from openclaw_rl.testing import ScriptedEngine, WordJudge, byte_tokenizer
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


@pytest.fixture
def loaded() -> Loaded:
    """A model that nothing was fitted to, and that answers every question with a verdict."""
    tokenizer = byte_tokenizer()
    engine = ScriptedEngine(tokenizer, '{"reasoning": "asks for a change", "verdict": -1}', 65_536)
    encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    return engine, encode, create_renderer(tokenizer, name="qwen3")


class TestLabel(JudgeContract):
    @pytest.fixture
    def judge(self, loaded: Loaded) -> Judge:
        return LabelJudge(*loaded)


class TestAnswer(JudgeContract):
    @pytest.fixture
    def judge(self, loaded: Loaded) -> Judge:
        engine, _, renderer = loaded
        return AnswerJudge(engine, renderer)


class TestModel(JudgeContract):
    @pytest.fixture
    def judge(self, loaded: Loaded) -> Judge:
        return ModelJudge(lambda: loaded, owns=True)


class TestRulesFirst(JudgeContract):
    """As ``--judge label`` makes it."""

    @pytest.fixture
    def judge(self, loaded: Loaded) -> Judge:
        return create_judge("label", JudgeParts(load=lambda model: loaded, model="scripted"))
