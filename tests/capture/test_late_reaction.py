"""What somebody says hours later counts, as long as nothing was learned from the turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openclaw_rl.capture.events import CLOSED, FEEDBACK, NEXT_STATE, UNSURE_STATE, TurnEvent
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import COMPLAINT, settle_sample

ENDED = Verdict(0, 0.0, "votes", trainable=False, reason="the session ended with this reply")
BAD = Verdict(-1, 0.9, "votes", hints=("Shorter.",))


def said(turn_id: str = "t1") -> TurnEvent:
    return TurnEvent(turn_id, "next_state", 1_700_090_000.0, [{"role": "user", "content": "Shorter."}])


@pytest.fixture
def queue(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> LedgerJudgeQueue:
    serve_ledger.append([make_turn("t1")])
    queue = LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=1800.0)
    queue.pull()
    return queue


def judge(queue: LedgerJudgeQueue, verdict: Verdict) -> None:
    assert queue.ready(10, 2e9) == ["t1"]
    assert queue.case("t1") is not None
    queue.settle("t1", verdict)


def test_a_late_reaction_takes_the_place_of_the_sessions_end(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    judge(queue, ENDED)
    serve_ledger.append([said()])
    queue.pull()
    case = queue.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "Shorter."}]
    judge(queue, BAD)
    assert learn_ledger.verdict("t1") == BAD
    assert +learn_ledger.counts(2e9) == {"judged": 1}
    queue.pull()
    assert queue.ready(10, 2e9) == []


def test_also_after_a_client_closed_the_session(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([TurnEvent("t1", CLOSED, 9.0)])
    queue.pull()
    judge(queue, ENDED)
    serve_ledger.append([said()])
    queue.pull()
    judge(queue, BAD)
    assert learn_ledger.verdict("t1") == BAD


def test_one_that_comes_while_the_turn_is_judged_is_not_lost(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    assert queue.case("t1") is not None
    serve_ledger.append([said()])
    queue.pull()
    queue.settle("t1", ENDED)
    assert learn_ledger.verdict("t1") is None
    judge(queue, BAD)
    assert learn_ledger.verdict("t1") == BAD


def test_not_once_a_step_has_taken_the_turn_or_a_person_has_rated_it(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    policies = settle_sample(serve_ledger, learn_ledger, make_turn("t1"), COMPLAINT)
    policies.claim(1, 0, "")
    serve_ledger.append([make_turn("t2"), TurnEvent("t2", FEEDBACK, 9.0, data={"score": 1})])
    queue.pull()
    serve_ledger.append([said("t1"), said("t2")])
    queue.pull()
    assert queue.ready(10, 2e9) == []


def by_a_node(turn_id: str = "t1") -> TurnEvent:
    return TurnEvent(
        turn_id, UNSURE_STATE, 1_700_080_000.0, [{"role": "user", "content": "List its faults."}]
    )


def test_a_reaction_takes_the_place_of_what_a_node_asked(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([by_a_node()])
    queue.pull()
    judge(queue, Verdict(-1, 0.8, "votes"))
    serve_ledger.append([said(), by_a_node()])
    queue.pull()
    case = queue.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "Shorter."}]
    judge(queue, BAD)
    assert learn_ledger.verdict("t1") == BAD
    assert +learn_ledger.counts(2e9) == {"judged": 1}
    assert [event.kind for event in serve_ledger.events_of("t1")] == [UNSURE_STATE, NEXT_STATE]


def test_also_while_the_turn_is_judged_by_what_a_node_asked(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([by_a_node()])
    queue.pull()
    assert queue.case("t1") is not None
    serve_ledger.append([said()])
    queue.pull()
    queue.settle("t1", Verdict(-1, 0.8, "votes"))
    assert learn_ledger.verdict("t1") is None
    judge(queue, BAD)
    assert learn_ledger.verdict("t1") == BAD


def test_a_turn_on_the_side_that_goes_on_is_counted_once(serve_ledger: ServeLedger) -> None:
    serve_ledger.append([replace(make_turn("t1"), kind="side"), replace(make_turn("t2"), kind="side")])
    assert serve_ledger.counts()["out_side"] == 2
    for event in (by_a_node("t1"), said("t1"), said("t2"), by_a_node("t2")):
        serve_ledger.append([event])
    assert serve_ledger.counts()["out_side"] == 0
    assert [event.kind for event in serve_ledger.events_of("t2")] == [NEXT_STATE]
