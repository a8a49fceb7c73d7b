"""Whose accepted replies a step hears again, and how far apart versions are."""

from __future__ import annotations

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Verdict

from .conftest import make_turn
from .steps import add_sample

PRAISE = Verdict(1, 1.0, "feedback")
PEOPLE = [f"user {letter}" for letter in "abcdefgh"]


def learn_from(policies: PolicyLedger, number: int) -> None:
    claimed = policies.claim(number, policies.serving(), "")
    assert claimed is not None
    assert policies.publish(claimed.version, {})


def test_everybody_has_their_turn(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    for round_number in range(3):
        for n, user in enumerate(PEOPLE):
            turn = make_turn(f"{user} {round_number}", user=user, created_at=100.0 * round_number + n)
            policies = add_sample(serve_ledger, learn_ledger, turn, PRAISE)
    learn_from(policies, 24)
    heard = [policies._accepted(2, "everyone", seed=version) for version in range(30)]
    assert {turn_id[:6] for chosen in heard for turn_id in chosen} == set(PEOPLE)
    assert all(len({turn_id[:6] for turn_id in chosen}) == 2 for chosen in heard)
    assert all(turn_id.endswith("2") for chosen in heard for turn_id in chosen)
    assert heard == [policies._accepted(2, "everyone", seed=version) for version in range(30)]


def test_only_those_who_were_active_last(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    for n in range(34):
        turn = make_turn(f"t{n:02}", user=f"user {n:02}", created_at=float(n))
        policies = add_sample(serve_ledger, learn_ledger, turn, PRAISE)
    learn_from(policies, 34)
    heard = {turn for version in range(40) for turn in policies._accepted(8, "everyone", seed=version)}
    assert heard == {f"t{n:02}" for n in range(2, 34)}


def test_one_person_alone_is_heard_as_often(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    for n in range(6):
        policies = add_sample(serve_ledger, learn_ledger, make_turn(f"t{n}", created_at=float(n)), PRAISE)
    learn_from(policies, 6)
    assert policies._accepted(4, "everyone", seed=1) == ["t5", "t4", "t3", "t2"]


def version_of(serve: ServeLedger, learn: LearnLedger, parent: int, served: bool) -> int:
    number = len(PolicyLedger(serve, learn).list_policies())
    policies = add_sample(serve, learn, make_turn(f"v{number}", created_at=float(number)))
    claimed = policies.claim(1, parent, "")
    assert claimed is not None
    if served:
        assert policies.publish(claimed.version, {})
    else:
        policies.reject(claimed.version, {"passed": False, "reason": "worse", "checks": []})
    return claimed.version


def test_steps_are_counted_along_the_lineage(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    policies = PolicyLedger(serve_ledger, learn_ledger)
    first = version_of(serve_ledger, learn_ledger, 0, served=True)
    for _ in range(9):
        version_of(serve_ledger, learn_ledger, first, served=False)
    newest = version_of(serve_ledger, learn_ledger, first, served=True)
    assert newest == 11
    assert policies.num_between(first, newest) == 1
    assert policies.num_between(0, newest) == 2
    policies.promote(first, "by hand")
    other = version_of(serve_ledger, learn_ledger, first, served=True)
    assert policies.num_between(newest, other) == 2  # back to what both were made from, and on
    assert policies.num_between(newest, first) == 1
    assert policies.num_between(other, other) == 0
