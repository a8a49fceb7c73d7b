"""Weights of old versions go, milestones stay."""

from __future__ import annotations

from openclaw_rl.train.keep import expendable, with_states
from openclaw_rl.types import Policy


def policy(version: int, parent: int, status: str = "retired", **gate: object) -> Policy:
    return Policy(version, parent, status, 1.0, 1.0, 1, "", {}, gate)


def test_the_last_few_and_the_milestones_stay() -> None:
    made = [policy(n, n - 1, "serving" if n == 20 else "retired") for n in range(20, 0, -1)]
    made[15] = policy(5, 4, history=["promoted by hand"])
    lineage = list(range(20, -1, -1))
    served = {n: 10.0 for n in range(1, 21)} | {3: 9000.0, 7: 8000.0}
    gone = expendable(made, lineage, served, keep=4)
    assert sorted(gone) == [n for n in range(1, 17) if n not in (3, 5, 7)]


def test_rejected_ones_stay_for_a_while_and_what_is_made_is_never_touched() -> None:
    made = [
        policy(6, 1, "training"), policy(5, 1, "candidate"), policy(4, 1, "rejected"),
        policy(3, 1, "rejected"), policy(2, 1, "rejected"), policy(1, 0, "serving"),
    ]  # fmt: skip
    assert expendable(made, [1, 0], {1: 5.0}, keep=1) == [2]


def test_a_branch_that_was_left_goes_too() -> None:
    made = [policy(4, 1, "serving"), policy(3, 2), policy(2, 1), policy(1, 0)]
    assert expendable(made, [4, 1, 0], {4: 1.0, 1: 9.0, 2: 0.1, 3: 0.1}, keep=2) == [3, 2]


def test_unlearning_repeats_at_most_a_tenth_more_steps_than_it_has_to() -> None:
    """For every version of a line of 300, whichever of its ancestors learned first what is forgotten."""
    kept: set[int] = set()
    for depth in range(1, 301):
        line = list(range(depth, -1, -1))
        now = set(with_states(line))
        assert now <= kept | {depth}, "a state that was deleted is not needed later"
        kept = now
        for first in range(1, depth + 1):
            after = depth - first + 1
            back_to = max([0, *(version for version in kept if version < first)])
            assert depth - back_to <= 1.1 * after, (depth, first, sorted(kept))
    assert len(kept) <= 11 + 11 * 4


def test_the_newest_states_stay_and_ever_fewer_before_them() -> None:
    assert with_states(list(range(20, -1, -1))) == [*range(20, 9, -1), 8, 6, 4, 2]
    assert with_states([0]) == []
    made = [policy(n, n - 1, "serving" if n == 20 else "retired") for n in range(20, 0, -1)]
    gone = expendable(made, list(range(20, -1, -1)), {20: 1.0, 19: 1.0}, keep=4, states=[16, 14, 12, 8])
    assert sorted(set(range(1, 17)) - set(gone)) == [8, 12, 14, 16]
