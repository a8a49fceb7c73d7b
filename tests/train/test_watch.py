"""How often a version is left without a reason, and how soon with one: simulated people."""

from __future__ import annotations

import random

import pytest

from openclaw_rl.train.watch import FALSE_ALARMS, Reaction, better_before, max_evidence

#: Verdicts on each version: the default makes one of almost every complaint.
EVERY = 4


def reactions(
    chance: random.Random, rates: dict[str, float], number: int, first: int = 0, neutral: float = 0.0
) -> list[Reaction]:
    """Verdicts of people who are pleased that often, on a new version every few of them."""
    found = []
    for n in range(number):
        user = chance.choice(sorted(rates))
        score = 1 if chance.random() < rates[user] else -1
        found.append(Reaction(first + n // EVERY, user, 0 if chance.random() < neutral else score))
    return found


def first_alarm(said: list[Reaction], start: int) -> int | None:
    """After how many verdicts beyond the first ones somebody who looks after each of them goes back."""
    for number in range(start + 1, len(said) + 1):
        newest = said[number - 1].version
        if better_before(range(newest, -1, -1), said[:number]) is not None:
            return number - start
    return None


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_false_alarms_are_as_rare_as_stated(rate: float) -> None:
    """400 verdicts, a hundred versions."""
    runs = 20
    alarms = 0
    for seed in range(runs):
        said = reactions(random.Random(seed), {"alice": rate, "bob": min(1.0, rate + 0.1)}, 400, neutral=0.2)
        # As if looked at after every verdict: the stake counts at its highest.
        versions = range(1, said[-1].version + 1)
        looks = (better_before(range(v, -1, -1), [r for r in said if r.version <= v]) for v in versions)
        alarms += any(target is not None for target in looks)
    assert alarms <= FALSE_ALARMS * runs


@pytest.mark.parametrize("people", [1, 3])
def test_a_fall_is_found_within_forty_verdicts(people: int) -> None:
    """From 0.8 to 0.3, with a new version every few verdicts."""
    before, after = ({f"user {n}": rate for n in range(people)} for rate in (0.8, 0.3))
    found = []
    for seed in range(20):
        chance = random.Random(seed)
        good = reactions(chance, before, 120)
        bad = reactions(chance, after, 40, first=good[-1].version + 1)
        found.append(first_alarm(good + bad, len(good)))
    in_time = sorted(number for number in found if number is not None)
    assert len(in_time) >= 18
    assert in_time[10] <= 25


def test_it_goes_back_to_about_where_it_was_good() -> None:
    chance = random.Random(1)
    good = reactions(chance, {"alice": 0.9}, 80)
    bad = reactions(chance, {"alice": 0.1}, 24, first=good[-1].version + 1)
    newest = bad[-1].version
    target = better_before(range(newest, -1, -1), good + bad)
    assert target is not None
    assert good[-1].version - 3 <= target <= good[-1].version + 1


def test_a_dozen_verdicts_before_are_enough() -> None:
    before = [Reaction(0, "alice", 1)] * 12
    assert better_before([1, 0], before + [Reaction(1, "alice", -1)] * 5) is None
    assert better_before([1, 0], before + [Reaction(1, "alice", -1)] * 12) == 0


def test_somebody_new_who_is_hard_to_please_says_nothing_about_a_version() -> None:
    pleased = [Reaction(0, "alice", 1)] * 50
    assert max_evidence(pleased, [Reaction(1, "bob", -1)] * 50) == 1.0


def test_a_version_of_its_own_is_compared_with_nothing() -> None:
    assert better_before([0], [Reaction(0, "alice", -1)] * 50) is None
