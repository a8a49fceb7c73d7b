"""The algorithm's contract, against every algorithm and the example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openclaw_rl.algo import ALGORITHMS, create_algorithm
from openclaw_rl.config import LearnConfig
from openclaw_rl.testing.contracts import AlgorithmContract
from openclaw_rl.types import Algorithm

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestAlgorithms(AlgorithmContract):
    @pytest.fixture(params=[*ALGORITHMS, "my_algo:PraiseOnly"])
    def algorithm(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
        monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
        return create_algorithm(LearnConfig(algo=request.param))


@pytest.mark.parametrize("name", ["my_algo", "my_engine", "my_env", "my_judge", "my_trainer"])
def test_an_example_can_be_read_in_one_sitting(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120
