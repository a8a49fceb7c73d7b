"""What the learn process keeps: nothing judged twice, nothing forgotten, on both databases."""

from __future__ import annotations

import pytest

from openclaw_rl.capture import inspect, unjudged
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger, tasks
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Verdict

from .conftest import make_turn

GOOD = Verdict(1, 0.9, "votes", votes=(1, 1, None), hints=())


def ledgers(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> Ledgers:
    return Ledgers.of(serve_ledger, learn_ledger)


@pytest.fixture
def judge_queue(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> LedgerJudgeQueue:
    return LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=1e12)


def follow(turn_id: str, text: str = "Thanks") -> TurnEvent:
    return TurnEvent(turn_id, "next_state", 5.0, [{"role": "user", "content": text}])


def test_only_what_became_judgeable_is_judged(
    serve_ledger: ServeLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), make_turn("t2"), make_turn("t3", kind="side")])
    serve_ledger.append([make_turn("t4", finish_reason="cancelled"), follow("t1")])
    judge_queue.pull()
    assert judge_queue.ready(10, 100.0) == ["t1"]
    case = judge_queue.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "Thanks"}]


def test_a_verdict_ends_the_task_once_and_for_all(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), follow("t1")])
    judge_queue.pull()
    judge_queue.settle("t1", GOOD)
    judge_queue.settle("t1", Verdict(-1, 0.5, "votes"))
    assert learn_ledger.verdict("t1") == GOOD
    judge_queue.pull()
    assert judge_queue.ready(10, 100.0) == []
    view = inspect.view_turn(ledgers(serve_ledger, learn_ledger), "t1")
    assert view is not None
    assert (view["state"], view["verdict"]["score"], view["kind"]) == ("judged", 1, "main")


def test_a_restart_takes_up_where_it_was(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn(f"t{i}") for i in range(5)])
    serve_ledger.append([follow(f"t{i}") for i in range(5)])
    judge_queue.pull()
    judge_queue.settle("t0", GOOD)
    again = LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=1e12)
    again.pull()
    assert sorted(again.ready(10, 100.0)) == ["t1", "t2", "t3", "t4"]


def test_a_judge_that_is_away_for_days_is_still_asked_again(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    """After a thousand failures, the next pause was too large a number to be had."""
    serve_ledger.append([make_turn("t1"), follow("t1")])
    judge_queue.pull()
    with learn_ledger.db.begin() as connection:
        connection.execute(tasks.update().values(attempts=5000))
    judge_queue.fail("t1", "the judge is away", 100.0)
    task = learn_ledger.task("t1")
    assert task is not None
    assert task["next_try_at"] == 400.0


def test_failures_are_kept_and_tried_ever_more_rarely(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), follow("t1")])
    judge_queue.pull()
    waits = []
    now = 100.0
    for _ in range(4):
        judge_queue.fail("t1", "the judge is away", now)
        task = learn_ledger.task("t1")
        assert task is not None
        waits.append(task["next_try_at"] - now)
        assert judge_queue.ready(10, now) == []
    assert waits == [1, 2, 4, 8]
    view = inspect.view_turn(ledgers(serve_ledger, learn_ledger), "t1")
    assert view is not None
    assert view["state"] == "unjudged"
    assert "the judge is away" in view["reason"]
    assert inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_state"]["unjudged"] == 1
    serve_ledger.append([TurnEvent(None, "flush", 6.0)])
    judge_queue.pull()
    assert judge_queue.ready(10, now) == ["t1"]


def test_a_persons_word_outranks_votes_before_and_after(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), make_turn("t2"), follow("t1"), follow("t2")])
    judge_queue.pull()
    judge_queue.settle("t1", GOOD)
    rating = {"score": -1, "text": "Too long."}
    serve_ledger.append(
        [TurnEvent("t1", "feedback", 7.0, data=rating), TurnEvent("t2", "feedback", 7.0, data=rating)]
    )
    judge_queue.pull()
    judge_queue.settle("t2", GOOD)
    for turn_id in ("t1", "t2"):
        verdict = learn_ledger.verdict(turn_id)
        assert verdict is not None
        assert (verdict.score, verdict.source, verdict.hints) == (-1, "feedback", ("Too long.",))
    serve_ledger.append([TurnEvent("t1", "feedback", 8.0, data={"score": 1})])
    judge_queue.pull()
    newest = learn_ledger.verdict("t1")
    assert newest is not None
    assert newest.score == 1
    assert inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_state"]["judged"] == 2


def test_what_was_thought_before_an_exclusion_counts_again(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), make_turn("t2"), follow("t1")])
    judge_queue.pull()
    judge_queue.settle("t1", GOOD)
    serve_ledger.append([TurnEvent("t1", "exclude", 7.0), TurnEvent("t2", "exclude", 7.0)])
    judge_queue.pull()
    assert {getattr(learn_ledger.verdict(turn), "source", None) for turn in ("t1", "t2")} == {"exclude"}
    serve_ledger.append(
        [TurnEvent("t1", "feedback", 8.0, data={"score": -1, "text": "Too long."}), follow("t2")]
    )
    judge_queue.pull()
    assert judge_queue.ready(10, 100.0) == []
    serve_ledger.append([TurnEvent("t1", "include", 9.0), TurnEvent("t2", "include", 9.0)])
    judge_queue.pull()
    spoken = learn_ledger.verdict("t1")
    assert spoken is not None
    assert (spoken.source, spoken.score) == ("feedback", -1)
    # What followed while it was out makes it ready.
    assert learn_ledger.verdict("t2") is None
    assert judge_queue.ready(10, 100.0) == ["t2"]
    judge_queue.settle("t2", GOOD)
    assert inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_state"]["judged"] == 2


def test_a_turn_taken_back_in_is_learned_from(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    """As the sampler does it: every verdict comes to something, and the last one counts."""
    policy_ledger = PolicyLedger(serve_ledger, learn_ledger)
    serve_ledger.append([make_turn("t1"), follow("t1")])
    judge_queue.pull()
    judge_queue.settle("t1", GOOD)

    def come_to() -> list[str]:
        came = []
        for seq, turn_id in policy_ledger.pending(10):
            found = policy_ledger.judged(turn_id)
            assert found is not None
            turn, verdict = found
            policy_ledger.settle(
                seq, turn, verdict, reason=verdict.reason if verdict.source == "exclude" else None
            )
            came.append(verdict.source)
        return came

    serve_ledger.append([TurnEvent("t1", "exclude", 7.0)])
    judge_queue.pull()
    assert come_to() == ["exclude", "exclude"]
    serve_ledger.append([TurnEvent("t1", "include", 8.0)])
    judge_queue.pull()
    assert come_to() == ["votes"]
    assert inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_reason"] == {}


@pytest.mark.parametrize("kind", ["side", "main"])
def test_taking_back_makes_nothing_judgeable_that_was_not(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue, kind: str
) -> None:
    serve_ledger.append([make_turn("t1", kind=kind), make_turn("t2")])
    judge_queue.pull()
    events = [TurnEvent("t1", "exclude", 2.0), TurnEvent("t1", "include", 3.0)]
    serve_ledger.append(events if kind == "side" else [events[0], TurnEvent("t1", "retried", 2.5), events[1]])
    judge_queue.pull()
    assert learn_ledger.verdict("t1") is None
    assert learn_ledger.task("t1") is None
    # Without an exclusion there is nothing to take back.
    serve_ledger.append([TurnEvent("t2", "include", 4.0)])
    judge_queue.pull()
    waits = learn_ledger.task("t2")
    assert waits is not None
    assert waits["ready"] is None


def test_the_first_next_state_stays(serve_ledger: ServeLedger, judge_queue: LedgerJudgeQueue) -> None:
    serve_ledger.append([make_turn("t1"), follow("t1", "first")])
    serve_ledger.append([follow("t1", "second")])
    case = judge_queue.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "first"}]


def test_a_retried_turn_is_out(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1")])
    judge_queue.pull()
    serve_ledger.append([TurnEvent("t1", "retried", 3.0)])
    judge_queue.pull()
    assert learn_ledger.task("t1") is None
    counts = inspect.view_counts(ledgers(serve_ledger, learn_ledger))
    assert counts["by_state"] == {
        "waiting": 0, "judged": 0, "unjudged": 0, "sampled": 0, "trained": 0, "excluded": 1,
    }  # fmt: skip
    assert counts["by_reason"] == {unjudged.RETRIED: 1}


def test_what_the_main_line_continues_belongs_to_it(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    """'Summarise this conversation' may have been the user's own wish."""
    serve_ledger.append([make_turn("t1", kind="side")])
    judge_queue.pull()
    assert inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_state"]["excluded"] == 1
    serve_ledger.append([follow("t1")])
    judge_queue.pull()
    assert judge_queue.ready(10, 100.0) == ["t1"]
    judge_queue.settle("t1", GOOD)
    counts = inspect.view_counts(ledgers(serve_ledger, learn_ledger))["by_state"]
    assert counts["judged"] == 1
    assert sum(counts.values()) == 1


def test_idle_sessions_end(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    judge_queue = LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=60)
    serve_ledger.append([make_turn("t1")])
    judge_queue.pull()
    assert judge_queue.ready(10, 1e12) == ["t1"]
    case = judge_queue.case("t1")
    assert case is not None
    assert case.next_state is None


def test_untrainable_turns_are_counted_with_their_reason(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger, judge_queue: LedgerJudgeQueue
) -> None:
    serve_ledger.append([make_turn("t1"), follow("t1")])
    judge_queue.pull()
    judge_queue.settle(
        "t1", Verdict(0, 1.0, "rule:degenerate", trainable=False, reason="the reply repeats itself")
    )
    counts = inspect.view_counts(ledgers(serve_ledger, learn_ledger))
    assert counts["by_reason"] == {"the reply repeats itself": 1}
    assert counts["by_state"]["excluded"] == 1
