"""Curves, swaps and their company, counted from rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.learned import (
    SwapWatch,
    view_rewards,
    view_step_turns,
    view_swaps,
    view_traffic,
)
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Verdict

from .conftest import make_turn


@pytest.fixture
def policy_ledger(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> PolicyLedger:
    return PolicyLedger(serve_ledger, learn_ledger)


@pytest.fixture
def judge(policy_ledger: PolicyLedger, learn_ledger: LearnLedger) -> Callable[..., None]:
    """Turns with these scores, one a second from 1000 on."""

    def judge_turns(scores: list[int], user: str = "alice") -> None:
        for number, score in enumerate(scores):
            turn, verdict = (
                make_turn(f"{user}{number}", user=user, created_at=1000.0 + number),
                Verdict(score, 1.0, "votes"),
            )
            with learn_ledger.db.begin() as connection:
                learn_ledger._add_verdict(connection, turn.id, verdict)
            [(seq, _)] = policy_ledger.pending(2)
            policy_ledger.settle(seq, turn, verdict, reason="nothing to learn")

    return judge_turns


def test_a_curve_of_single_turns(policy_ledger: PolicyLedger, judge: Any) -> None:
    judge([-1, -1, 0, 1])
    rewards = view_rewards(policy_ledger)
    assert (rewards["turns"], rewards["turns_per_point"]) == (4, 1)
    assert [point["reward"] for point in rewards["points"]] == [-1, -1, 0, 1]
    assert [point["satisfaction"] for point in rewards["points"]] == [0, 0, None, 1]
    assert [point["first"] for point in rewards["points"]] == [0, 1, 2, 3]


def test_many_turns_are_grouped_and_each_is_counted_once(policy_ledger: PolicyLedger, judge: Any) -> None:
    judge([1 if number % 4 else -1 for number in range(500)])
    rewards = view_rewards(policy_ledger)
    assert rewards["turns_per_point"] == 5
    assert sum(point["turns"] for point in rewards["points"]) == rewards["turns"] == 500
    assert sum(point["down"] for point in rewards["points"]) == 125
    assert all(a["to_at"] < b["from_at"] for a, b in pairwise(rewards["points"]))


def test_everybody_s_own_curve(policy_ledger: PolicyLedger, judge: Any) -> None:
    judge([1, 1])
    judge([-1], user="bob")
    assert view_rewards(policy_ledger)["turns"] == 3
    assert [point["reward"] for point in view_rewards(policy_ledger, "bob")["points"]] == [-1]
    assert view_rewards(policy_ledger, "nobody")["points"] == []


def test_every_swap_is_remembered(policy_ledger: PolicyLedger) -> None:
    assert view_swaps(policy_ledger) == []
    policy_ledger.promote(0, "back to the base")
    assert [(swap["version"], swap["why"]) for swap in view_swaps(policy_ledger)] == [(0, "back to the base")]
    assert view_step_turns(policy_ledger, 1, None) == []


def test_what_a_swap_did_to_the_replies_around_it(
    serve_ledger: ServeLedger, policy_ledger: PolicyLedger
) -> None:
    watch = SwapWatch(serve_ledger, policy_ledger)
    assert watch.last(time.time()) is None
    policy_ledger.promote(0, "by hand")
    at = view_swaps(policy_ledger)[0]["at"]

    def reply(name: str, after_s: float, first_token_s: float, reason: str = "stop") -> Any:
        turn = make_turn(name, created_at=at + after_s)
        return replace(turn, finish_reason=reason, timings={"first_token_s": first_token_s})

    serve_ledger.append([
        reply("long ago", -5000, 9.0), reply("before", -300, 0.2), reply("shortly before", -20, 0.4),
        reply("quick", 5, 0.5), reply("slow", 10, 3.0), reply("gone", 20, 0.1, "cancelled"),
        reply("later", 300, 9.0),
    ])  # fmt: skip
    seen = watch.last(time.time())
    assert seen is not None
    assert (seen["replies"], seen["failed"], seen["delayed"]) == (4, 1, 1)
    assert seen["delayed_above_s"] == pytest.approx(2 * 0.3 + 0.25)


def test_traffic_is_that_of_the_last_minute(serve_ledger: ServeLedger) -> None:
    now = time.time()
    serve_ledger.append([make_turn("old", created_at=now - 90), make_turn("new", created_at=now - 5)])
    traffic = view_traffic(serve_ledger, now)
    assert traffic["requests_per_s"] == pytest.approx(1 / 60)
    assert traffic["tokens_per_s"] > 0
