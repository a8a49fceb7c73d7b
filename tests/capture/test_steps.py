"""What happens to samples between the claim of a step and its end."""

from __future__ import annotations

from openclaw_rl.capture.events import EXCLUDE, INCLUDE, TurnEvent
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.steps import fair_share
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample


def test_what_is_excluded_after_the_claim_is_not_trained(
    serve_ledger: ServeLedger, learn_ledger: LearnLedger
) -> None:
    add_sample(serve_ledger, learn_ledger, make_turn("t1"))
    policies = add_sample(serve_ledger, learn_ledger, make_turn("t2"))
    claimed = policies.claim(2, 0, "")
    assert claimed is not None
    serve_ledger.append([TurnEvent("t1", EXCLUDE, 9.0)])  # the judge's worker has not seen it yet
    assert policies.take_out_excluded(claimed.version) == ["t1"]
    assert [item.source.turn_ids for item in policies.items(claimed.version)] == [("t2",)]
    kept = policies.of_turn("t1")
    assert kept is not None
    assert (kept["status"], kept["step"]) == ("excluded", None)
    assert "a person excluded it" in kept["reason"]
    assert policies.counts() == {"claimed": 1, f"excluded:{kept['reason']}": 1}


def test_and_can_be_taken_back_in(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    policies = add_sample(serve_ledger, learn_ledger, make_turn("t1"))
    claimed = policies.claim(1, 0, "")
    assert claimed is not None
    queue = LedgerJudgeQueue(serve_ledger, learn_ledger, idle_s=1e12)
    serve_ledger.append([TurnEvent("t1", EXCLUDE, 9.0)])
    queue.pull()
    policies.take_out_excluded(claimed.version)
    serve_ledger.append([TurnEvent("t1", INCLUDE, 10.0)])
    queue.pull()
    found = policies.judged("t1")
    assert found is not None
    assert found[1].score == -1
    seq = policies.pending(10)[-1][0]
    policies.settle(seq, *found, reason="settled anew")
    assert policies.of_turn("t1") == {
        "status": "excluded",
        "reason": "settled anew",
        "step": None,
        "strength": 0,
    }


def test_what_is_excluded_is_not_heard_again(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    praise = Verdict(1, 1.0, "feedback")
    policies = add_sample(serve_ledger, learn_ledger, make_turn("t1"), praise)
    first = policies.claim(1, 0, "")
    assert first is not None
    assert policies.publish(first.version, {})
    add_sample(serve_ledger, learn_ledger, make_turn("t2"))
    second = policies.claim(1, first.version, "", replay=2)
    assert second is not None
    assert len(policies.replayed(second.version)) == 1
    serve_ledger.append([TurnEvent("t1", EXCLUDE, 9.0)])
    assert policies.replayed(second.version) == []


def test_a_heavy_talker_does_not_fill_a_batch_of_a_shared_policy() -> None:
    heavy = [(f"a{n}", "ann") for n in range(9)]
    assert fair_share(heavy, 6) == [f"a{n}" for n in range(6)], "alone, they may"
    assert fair_share([*heavy, ("b0", "ben"), ("b1", "ben")], 6) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert fair_share([*heavy, ("b0", "ben")], 6) == ["a0", "a1", "a2", "a3", "b0"]
    assert fair_share([("b0", "ben"), *heavy], 2) == ["b0", "a0"]
