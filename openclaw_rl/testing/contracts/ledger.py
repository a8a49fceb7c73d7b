"""The contract of every store of turns, verdicts, samples and versions: the three ledgers together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.learn_ledger import NewTurn
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.types import EVERYONE, Example, SamplingParams, Source, Token, TurnRecord, Verdict

ANN, BEN = "user:ann", "user:ben"
PASSED = {"passed": True}


def turn(number: int, session: str = "s1", **changes: Any) -> TurnRecord:
    tokens = [Token(100 + i, -0.5 * i, -0.25 * i, (100 + i, 7), (-0.5 * i, -3.0), 0) for i in range(3)]
    made = TurnRecord(
        f"t{number}", session, "ann", "chat", "main", [{"role": "user", "content": f"question {number}"}],
        None, {"model": "m"}, {"role": "assistant", "content": f"answer {number}"}, [1, 2, number], tokens,
        SamplingParams(16), 0, "stop", 1_700_000_000.0 + number,
        keys={"chain": f"{number:032x}"},
    )  # fmt: skip
    return replace(made, **changes)


def example(of: TurnRecord) -> Example:
    ids = np.array([[token.id] for token in of.tokens], np.int32)
    old = np.array([[token.logprob] for token in of.tokens], np.float32)
    source = Source("own", (of.id,), of.user, -1, policy_version=of.policy_version)
    own = [token.id for token in of.tokens]
    return Example(of.prompt_ids, own, ids, old, -np.ones_like(old), source, len(own), scope=of.scope)


def judge(ledgers: Ledgers, turns: list[TurnRecord], score: int = -1) -> None:
    """Record turns, judge them, and make samples."""
    ledgers.serve.append([*turns, *(TurnEvent(t.id, "next_state", t.created_at, []) for t in turns)])
    last_turn, last_event = ledgers.learn.cursors()
    new = [
        NewTurn(t["seq"], t["id"], t["created_at"], True) for t in ledgers.serve.turns_after(last_turn, 99)
    ]
    ledgers.learn.pull(new, ledgers.serve.events_after(last_event, 99))
    for each in turns:
        ledgers.learn.settle(each.id, Verdict(score, 1.0, "votes"))
    for seq, turn_id in ledgers.policies.pending(99):
        found = ledgers.policies.judged(turn_id)
        assert found is not None
        ledgers.policies.settle(seq, *found, [example(found[0])])


def publish(ledgers: Ledgers, scope: str = EVERYONE) -> int:
    """Train on all waiting samples, pass the gate, and publish."""
    policies = ledgers.policies
    policy = policies.claim(99, policies.serving(scope), "hash", scope=scope)
    assert policy is not None
    policies.trained(policy.version, {"loss": 0.5})
    assert policies.publish(policy.version, PASSED)
    return policy.version


class LedgerContract:
    """Fixture: ``open_ledgers``, which opens the same store each time; it is empty the first time."""

    @pytest.fixture
    def ledgers(self, open_ledgers: Callable[[], Ledgers]) -> Ledgers:
        return open_ledgers()

    # --- turns -------------------------------------------------------------------------------

    def test_what_was_appended_is_read_back_exactly(self, open_ledgers: Callable[[], Ledgers]) -> None:
        given = turn(1, scope=ANN, continues="t0", timings={"total_s": 0.5})
        open_ledgers().serve.append([given])
        assert open_ledgers().serve.load_turn("t1") == given, "by whoever opens it next, too"

    def test_a_turn_is_stored_once(self, ledgers: Ledgers) -> None:
        ledgers.serve.append([turn(1), turn(1)])
        ledgers.serve.append([turn(1)])
        assert ledgers.serve.counts()["turns"] == 1
        assert [t["id"] for t in ledgers.serve.turns_after(0, 9)] == ["t1"]

    def test_readers_miss_nothing(self, ledgers: Ledgers) -> None:
        for number in range(5):
            ledgers.serve.append([turn(number)])
        seen: list[str] = []
        last = 0
        while page := ledgers.serve.turns_after(last, 2):
            seen += [t["id"] for t in page]
            last = page[-1]["seq"]
        assert seen == [f"t{number}" for number in range(5)]

    def test_an_entry_at_fault_is_refused_whole(self, ledgers: Ledgers) -> None:
        with pytest.raises(ValueError):
            ledgers.serve.append([turn(1), turn(2, policy_version=3)])
        assert ledgers.serve.counts()["turns"] == 0

    def test_a_turn_is_found_by_its_newest_key(self, ledgers: Ledgers) -> None:
        key = "ab" * 16
        ledgers.serve.append([turn(1, keys={"chain": key})])
        ledgers.serve.append([turn(2, "s2", keys={"chain": key})])
        assert ledgers.serve.find_by_keys([key, "cd" * 16]) == {key: ("t2", "s2")}

    def test_sessions_are_listed_newest_first(self, ledgers: Ledgers) -> None:
        ledgers.serve.append([turn(1, "a"), turn(2, "b"), turn(3, "a"), turn(4, "c", user="ben")])
        rows = ledgers.serve.list_sessions(9)
        assert [(row["id"], row["num_turns"]) for row in rows] == [("c", 1), ("b", 1), ("a", 2)]
        assert [row["id"] for row in ledgers.serve.list_sessions(1, after="c")] == ["b"]
        assert [row["id"] for row in ledgers.serve.list_sessions(9, user="ben")] == ["c"]
        assert [row["id"] for row in ledgers.serve.turn_summaries("a")] == ["t1", "t3"]

    def test_events_come_in_order_and_once(self, ledgers: Ledgers) -> None:
        followed = [{"role": "user", "content": "Thanks!"}]
        ledgers.serve.append([turn(1), TurnEvent("t1", "next_state", 1.0, followed)])
        ledgers.serve.append(
            [TurnEvent("t1", "next_state", 2.0), TurnEvent("t1", "feedback", 3.0, None, {"score": 1})]
        )
        ledgers.serve.append([TurnEvent("nobody", "closed", 4.0)])
        events = ledgers.serve.events_after(0, 9)
        assert [(event.kind, event.messages, event.data) for event in events] == [
            ("next_state", followed, {}),
            ("feedback", None, {"score": 1}),
        ]
        assert [event.seq for event in ledgers.serve.events_of("t1")] == [event.seq for event in events]

    # --- verdicts ----------------------------------------------------------------------------

    def test_a_turn_is_judged_once_and_explicit_feedback_wins(self, ledgers: Ledgers) -> None:
        judge(ledgers, [turn(1)])
        assert ledgers.learn.ready(9, time.time()) == []
        ledgers.learn.settle("t1", Verdict(1, 1.0, "votes"))
        assert ledgers.learn.verdict("t1") == Verdict(-1, 1.0, "votes"), "its task had ended"
        ledgers.serve.append([TurnEvent("t1", "feedback", 1.0, None, {"score": 1})])
        ledgers.learn.pull([], ledgers.serve.events_after(ledgers.learn.cursors()[1], 9))
        verdict = ledgers.learn.verdict("t1")
        assert verdict is not None
        assert (verdict.score, verdict.source) == (1, "feedback")

    def test_a_judge_that_failed_is_asked_again_later(self, ledgers: Ledgers) -> None:
        ledgers.serve.append([turn(1), TurnEvent("t1", "next_state", 1.0)])
        ledgers.learn.pull([NewTurn(1, "t1", 1.0, True)], ledgers.serve.events_after(0, 9))
        assert ledgers.learn.ready(9, now=10.0) == ["t1"]
        ledgers.learn.fail("t1", "no answer", now=10.0)
        assert ledgers.learn.ready(9, now=10.0) == []
        assert ledgers.learn.ready(9, now=9999.0) == ["t1"]
        assert ledgers.learn.verdict("t1") is None

    # --- samples and versions ----------------------------------------------------------------

    def test_a_sample_is_claimed_by_one_step(self, open_ledgers: Callable[[], Ledgers]) -> None:
        ledgers = open_ledgers()
        judge(ledgers, [turn(1), turn(2), turn(3)])
        policy = ledgers.policies.claim(2, 0, "hash")
        assert policy is not None
        assert (policy.version, policy.parent, policy.status) == (1, 0, "training")
        after = open_ledgers().policies  # after a crash, the restarted process finds the same step
        unfinished = after.unfinished()
        assert unfinished is not None
        assert unfinished.version == 1
        assert [made.source.turn_ids for made in after.items(1)] == [("t1",), ("t2",)]
        assert after.waiting()[0] == 1
        again = after.claim(2, 0, "hash")
        assert again is not None
        assert after.claimed(again.version) == ["t3"]

    def test_a_step_that_could_not_begin_gives_everything_back(self, ledgers: Ledgers) -> None:
        judge(ledgers, [turn(1)])
        policy = ledgers.policies.claim(1, 0, "hash")
        assert policy is not None
        ledgers.policies.release(policy.version)
        assert ledgers.policies.waiting()[0] == 1
        assert ledgers.policies.unfinished() is None

    def test_only_what_passed_serves(self, ledgers: Ledgers) -> None:
        judge(ledgers, [turn(1)])
        assert publish(ledgers) == ledgers.policies.serving() == 1
        judge(ledgers, [turn(2)])
        policy = ledgers.policies.claim(1, 1, "hash")
        assert policy is not None
        ledgers.policies.reject(policy.version, {"passed": False, "reason": "worse"})
        assert ledgers.policies.serving() == 1
        ledgers.policies.promote(0, "by hand")
        assert ledgers.policies.serving() == 0
        assert {p.version: p.status for p in ledgers.policies.list_policies()} == {
            1: "retired",
            2: "rejected",
        }

    def test_a_candidate_of_a_version_that_no_longer_serves_is_dropped(self, ledgers: Ledgers) -> None:
        judge(ledgers, [turn(1)])
        publish(ledgers)
        judge(ledgers, [turn(2)])
        policy = ledgers.policies.claim(1, 1, "hash")
        assert policy is not None
        ledgers.policies.trained(policy.version, {})
        ledgers.policies.promote(0, "by hand")
        assert not ledgers.policies.publish(policy.version, PASSED)
        assert ledgers.policies.serving() == 0

    def test_scopes_do_not_see_each_other(self, ledgers: Ledgers) -> None:
        policies = ledgers.policies
        judge(ledgers, [turn(1, scope=ANN), turn(2, "s2", scope=BEN, user="ben")])
        assert policies.waiting()[0] == 0
        assert policies.waiting(ANN)[0] == policies.waiting(BEN)[0] == 1
        first = publish(ledgers, ANN)
        assert [made.source.turn_ids for made in policies.items(first)] == [("t1",)]
        assert policies.waiting(BEN)[0] == 1
        second = publish(ledgers, BEN)
        assert policies.serving_table() == {ANN: first, BEN: second}
        assert [p.version for p in policies.list_policies(scope=ANN)] == [first]
        policies.promote(0, "rolled back", ANN)
        assert policies.serving_table() == {BEN: second}
        assert (policies.serving(ANN), policies.serving(BEN), policies.serving()) == (0, second, 0)
        with pytest.raises(ValueError, match=BEN):
            policies.promote(second, "by hand", ANN)
        assert policies.scores_of(0, ANN) == policies.scores_of(0, BEN) == [-1]
        assert policies.scores_of(0) == []
        assert policies.num_between(0, second, BEN) == 1
