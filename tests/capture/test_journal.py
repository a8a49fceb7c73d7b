"""What the learn process keeps: nothing judged twice, nothing forgotten, on both databases."""

from __future__ import annotations

import pytest

from openclaw_rl.capture import inspect
from openclaw_rl.capture.desk import LedgerDesk
from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.inspect import Books
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.capture.lineage import Lineage
from openclaw_rl.types import Json, Message, Verdict

from .conftest import make_turn

GOOD = Verdict(1, 0.9, "votes", votes=(1, 1, None), hints=())


def books(ledger: Ledger, journal: Journal) -> Books:
    return Books(ledger, journal, Lineage(ledger, journal))


def as_is(messages: list[Json]) -> list[Message]:
    return [{"content": "", **message} for message in messages]


@pytest.fixture
def desk(ledger: Ledger, journal: Journal) -> LedgerDesk:
    return LedgerDesk(ledger, journal, as_is, idle_s=1e12)


def follow(turn_id: str, text: str = "Thanks") -> TurnEvent:
    return TurnEvent(turn_id, "next_state", 5.0, [{"role": "user", "content": text}])


def test_only_what_became_judgeable_is_judged(ledger: Ledger, desk: LedgerDesk) -> None:
    ledger.append([make_turn("t1"), make_turn("t2"), make_turn("t3", kind="side")])
    ledger.append([make_turn("t4", finish_reason="cancelled"), follow("t1")])
    desk.pull()
    assert desk.ready(10, 100.0) == ["t1"]
    case = desk.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "Thanks"}]


def test_a_verdict_ends_the_task_once_and_for_all(ledger: Ledger, journal: Journal, desk: LedgerDesk) -> None:
    ledger.append([make_turn("t1"), follow("t1")])
    desk.pull()
    desk.settle("t1", GOOD)
    desk.settle("t1", Verdict(-1, 0.5, "votes"))
    assert journal.verdict("t1") == GOOD
    desk.pull()
    assert desk.ready(10, 100.0) == []
    view = inspect.view_turn(books(ledger, journal), "t1")
    assert view is not None
    assert (view["state"], view["verdict"]["score"], view["kind"]) == ("judged", 1, "main")


def test_a_restart_takes_up_where_it_was(ledger: Ledger, journal: Journal, desk: LedgerDesk) -> None:
    ledger.append([make_turn(f"t{i}") for i in range(5)])
    ledger.append([follow(f"t{i}") for i in range(5)])
    desk.pull()
    desk.settle("t0", GOOD)
    again = LedgerDesk(ledger, journal, as_is, idle_s=1e12)
    again.pull()
    assert sorted(again.ready(10, 100.0)) == ["t1", "t2", "t3", "t4"]


def test_failures_are_kept_and_tried_ever_more_rarely(
    ledger: Ledger, journal: Journal, desk: LedgerDesk
) -> None:
    ledger.append([make_turn("t1"), follow("t1")])
    desk.pull()
    waits = []
    now = 100.0
    for _ in range(4):
        desk.fail("t1", "the judge is away", now)
        task = journal.task("t1")
        assert task is not None
        waits.append(task["next_try_at"] - now)
        assert desk.ready(10, now) == []
    assert waits == [1, 2, 4, 8]
    view = inspect.view_turn(books(ledger, journal), "t1")
    assert view is not None
    assert view["state"] == "unjudged"
    assert "the judge is away" in view["reason"]
    assert inspect.view_counts(books(ledger, journal))["by_state"]["unjudged"] == 1
    ledger.append([TurnEvent(None, "flush", 6.0)])
    desk.pull()
    assert desk.ready(10, now) == ["t1"]


def test_a_persons_word_outranks_votes_before_and_after(
    ledger: Ledger, journal: Journal, desk: LedgerDesk
) -> None:
    ledger.append([make_turn("t1"), make_turn("t2"), follow("t1"), follow("t2")])
    desk.pull()
    desk.settle("t1", GOOD)
    rating = {"score": -1, "text": "Too long."}
    ledger.append(
        [TurnEvent("t1", "feedback", 7.0, data=rating), TurnEvent("t2", "feedback", 7.0, data=rating)]
    )
    desk.pull()
    desk.settle("t2", GOOD)
    for turn_id in ("t1", "t2"):
        verdict = journal.verdict(turn_id)
        assert verdict is not None
        assert (verdict.score, verdict.source, verdict.hints) == (-1, "feedback", ("Too long.",))
    ledger.append([TurnEvent("t1", "feedback", 8.0, data={"score": 1})])
    desk.pull()
    newest = journal.verdict("t1")
    assert newest is not None
    assert newest.score == 1
    assert inspect.view_counts(books(ledger, journal))["by_state"]["judged"] == 2


def test_what_was_thought_before_an_exclusion_counts_again(
    ledger: Ledger, journal: Journal, desk: LedgerDesk
) -> None:
    ledger.append([make_turn("t1"), make_turn("t2"), follow("t1")])
    desk.pull()
    desk.settle("t1", GOOD)
    ledger.append([TurnEvent("t1", "exclude", 7.0), TurnEvent("t2", "exclude", 7.0)])
    desk.pull()
    assert {getattr(journal.verdict(turn), "source", None) for turn in ("t1", "t2")} == {"exclude"}
    ledger.append([TurnEvent("t1", "feedback", 8.0, data={"score": -1, "text": "Too long."}), follow("t2")])
    desk.pull()
    assert desk.ready(10, 100.0) == []
    ledger.append([TurnEvent("t1", "include", 9.0), TurnEvent("t2", "include", 9.0)])
    desk.pull()
    spoken = journal.verdict("t1")
    assert spoken is not None
    assert (spoken.source, spoken.score) == ("feedback", -1)
    # What followed while it was out makes it ready.
    assert journal.verdict("t2") is None
    assert desk.ready(10, 100.0) == ["t2"]
    desk.settle("t2", GOOD)
    assert inspect.view_counts(books(ledger, journal))["by_state"]["judged"] == 2


def test_a_turn_taken_back_in_is_learned_from(ledger: Ledger, journal: Journal, desk: LedgerDesk) -> None:
    """As the sampler does it: every verdict comes to something, and the last one counts."""
    lineage = Lineage(ledger, journal)
    ledger.append([make_turn("t1"), follow("t1")])
    desk.pull()
    desk.settle("t1", GOOD)

    def come_to() -> list[str]:
        came = []
        for seq, turn_id in lineage.pending(10):
            found = lineage.judged(turn_id)
            assert found is not None
            turn, verdict = found
            lineage.settle(seq, turn, verdict, reason=verdict.reason if verdict.source == "exclude" else None)
            came.append(verdict.source)
        return came

    ledger.append([TurnEvent("t1", "exclude", 7.0)])
    desk.pull()
    assert come_to() == ["exclude", "exclude"]
    ledger.append([TurnEvent("t1", "include", 8.0)])
    desk.pull()
    assert come_to() == ["votes"]
    assert inspect.view_counts(books(ledger, journal))["by_reason"] == {}


@pytest.mark.parametrize("kind", ["side", "main"])
def test_taking_back_makes_nothing_judgeable_that_was_not(
    ledger: Ledger, journal: Journal, desk: LedgerDesk, kind: str
) -> None:
    ledger.append([make_turn("t1", kind=kind), make_turn("t2")])
    desk.pull()
    events = [TurnEvent("t1", "exclude", 2.0), TurnEvent("t1", "include", 3.0)]
    ledger.append(events if kind == "side" else [events[0], TurnEvent("t1", "retried", 2.5), events[1]])
    desk.pull()
    assert journal.verdict("t1") is None
    assert journal.task("t1") is None
    # Without an exclusion there is nothing to take back.
    ledger.append([TurnEvent("t2", "include", 4.0)])
    desk.pull()
    waits = journal.task("t2")
    assert waits is not None
    assert waits["ready"] is None


def test_the_first_next_state_stays(ledger: Ledger, desk: LedgerDesk) -> None:
    ledger.append([make_turn("t1"), follow("t1", "first")])
    ledger.append([follow("t1", "second")])
    case = desk.case("t1")
    assert case is not None
    assert case.next_state == [{"role": "user", "content": "first"}]


def test_a_retried_turn_is_out(ledger: Ledger, journal: Journal, desk: LedgerDesk) -> None:
    ledger.append([make_turn("t1")])
    desk.pull()
    ledger.append([TurnEvent("t1", "retried", 3.0)])
    desk.pull()
    assert journal.task("t1") is None
    counts = inspect.view_counts(books(ledger, journal))
    assert counts["by_state"] == {
        "waiting": 0, "judged": 0, "unjudged": 0, "sampled": 0, "trained": 0, "excluded": 1,
    }  # fmt: skip
    assert counts["by_reason"] == {inspect.RETRIED: 1}


def test_what_the_main_line_continues_belongs_to_it(
    ledger: Ledger, journal: Journal, desk: LedgerDesk
) -> None:
    """'Summarise this conversation' may have been the user's own wish."""
    ledger.append([make_turn("t1", kind="side")])
    desk.pull()
    assert inspect.view_counts(books(ledger, journal))["by_state"]["excluded"] == 1
    ledger.append([follow("t1")])
    desk.pull()
    assert desk.ready(10, 100.0) == ["t1"]
    desk.settle("t1", GOOD)
    counts = inspect.view_counts(books(ledger, journal))["by_state"]
    assert counts["judged"] == 1
    assert sum(counts.values()) == 1


def test_idle_sessions_end(ledger: Ledger, journal: Journal) -> None:
    desk = LedgerDesk(ledger, journal, as_is, idle_s=60)
    ledger.append([make_turn("t1")])
    desk.pull()
    assert desk.ready(10, 1e12) == ["t1"]
    case = desk.case("t1")
    assert case is not None
    assert case.next_state is None


def test_untrainable_turns_are_counted_with_their_reason(
    ledger: Ledger, journal: Journal, desk: LedgerDesk
) -> None:
    ledger.append([make_turn("t1"), follow("t1")])
    desk.pull()
    desk.settle("t1", Verdict(0, 1.0, "rule:degenerate", trainable=False, reason="the reply repeats itself"))
    counts = inspect.view_counts(books(ledger, journal))
    assert counts["by_reason"] == {"the reply repeats itself": 1}
    assert counts["by_state"]["excluded"] == 1
