"""Who ended a reply that was cut off: the client's own limit, or somebody else's."""

from __future__ import annotations

import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Json, SamplingParams

from .conftest import make_turn


@pytest.mark.parametrize(
    ("params", "allowed", "own"),
    [
        ({"max_tokens": 30}, 30, True),
        ({"max_completion_tokens": 30}, 30, True),
        ({"max_tokens": 30}, 12, False),  # the context was full before
        ({}, 30, False),
    ],
)
def test_the_clients_own_limit(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, params: Json, allowed: int, own: bool
) -> None:
    turn = make_turn("t1", params=params, finish_reason="length", sampling=SamplingParams(allowed))
    serve_ledger.append([turn])
    case = LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=1.0).case("t1")
    assert case is not None
    assert case.own_limit is own
