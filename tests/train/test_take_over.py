"""When the model here is given more to answer, and when it is left again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from openclaw_rl.train.takeover import ENOUGH, FALLS, FIRST, RISES, TakeOver, as_good, take_over_shares
from openclaw_rl.train.watch import Reaction
from openclaw_rl.types import EVERYONE, UPSTREAM_VERSION, Policy, Scope


@dataclass(frozen=True)
class TrafficShare:
    share: float = 0.0
    at: float = 0.0
    why: str = ""


@dataclass
class Ledger:
    """Rungs and verdicts in memory; a version by its number, published at that time."""

    version: int = 0
    now: float = 0.0
    steps_taken: list[TrafficShare] = field(default_factory=list)
    heard: list[tuple[float, int, str, int]] = field(default_factory=list)
    leads: Callable[[Scope], bool] = field(default=lambda scope: True)

    def current(self, scope: Scope) -> TrafficShare:
        return self.steps_taken[-1] if self.steps_taken else TrafficShare()

    def go(self, scope: Scope, share: float, why: str) -> None:
        self.steps_taken.append(TrafficShare(share, self.now, why))

    def reactions(self, scope: Scope, since: float = 0.0) -> list[tuple[int, str, int]]:
        return [(version, user, score) for at, version, user, score in self.heard if at >= since]

    def changed_scopes(self, seen: object) -> tuple[list[Scope], object]:
        return [EVERYONE], seen

    def serving(self, scope: Scope) -> int:
        return self.version

    def policy(self, version: int) -> Policy | None:
        if not version:
            return None
        return Policy(version, 0, "serving", 0.0, float(version), 1, "", {}, {})


def talk(ledger: Ledger, number: int, here: float, elsewhere: float, chance: random.Random) -> None:
    """So many replies, by whoever's turn it is, each liked with such a probability; looked at at times."""
    take_over = TakeOver(ledger, ledger, (0.05, 0.25, 0.5, 1.0))
    for reply in range(number):
        ledger.now += 1
        local = chance.random() < ledger.current(EVERYONE).share
        liked = chance.random() < (here if local else elsewhere)
        version = ledger.version if local else UPSTREAM_VERSION
        ledger.heard.append((ledger.now, version, chance.choice(["ann", "ben"]), 1 if liked else -1))
        if reply % 10 == 0:
            take_over.look()


def test_nothing_is_taken_over_before_something_is_learned() -> None:
    ledger = Ledger()
    talk(ledger, 50, 1.0, 1.0, random.Random(0))
    assert ledger.steps_taken == []


def test_as_good_it_takes_over_share_by_share() -> None:
    ledger = Ledger(version=1)
    talk(ledger, 2000, 0.9, 0.9, random.Random(1))
    assert [current.share for current in ledger.steps_taken] == [0.05, 0.25, 0.5, 1.0]
    assert [current.why for current in ledger.steps_taken] == [FIRST, RISES, RISES, RISES]


def test_clearly_worse_it_is_left_and_waits_for_a_newer_version() -> None:
    for seed in range(2):
        ledger = Ledger(version=1)
        talk(ledger, 1000, 0.3, 0.9, random.Random(seed))
        assert ledger.steps_taken[-1].share == 0
        assert ledger.steps_taken[-1].why == FALLS
        assert max(current.share for current in ledger.steps_taken) <= 0.25
        number = len(ledger.steps_taken)
        talk(ledger, 100, 0.3, 0.9, random.Random(seed))
        assert len(ledger.steps_taken) == number
        ledger.version = int(ledger.now) + 1
        talk(ledger, 1, 0.9, 0.9, random.Random(seed))
        assert ledger.steps_taken[-1].share == 0.05


def test_worse_later_it_is_left_also_where_nobody_else_answers() -> None:
    ledger = Ledger(version=1)
    talk(ledger, 2000, 0.9, 0.9, random.Random(2))
    assert ledger.steps_taken[-1].share == 1.0
    talk(ledger, 400, 0.2, 0.9, random.Random(3))
    assert 0.0 in [current.share for current in ledger.steps_taken[4:]]


def test_back_at_the_base_it_answers_nothing() -> None:
    ledger = Ledger(version=1, steps_taken=[TrafficShare(0.5, 0.0)])
    ledger.version = 0
    TakeOver(ledger, ledger, (0.5, 1.0)).look()
    assert ledger.steps_taken[-1].share == 0


def test_another_host_s_scopes_are_left_alone() -> None:
    ledger = Ledger(version=1, leads=lambda scope: False)
    TakeOver(ledger, ledger, (0.5, 1.0)).look()
    assert ledger.steps_taken == []


def upstream(chance: random.Random, liked: float, number: int) -> list[Reaction]:
    return [Reaction(UPSTREAM_VERSION, "ann", 1 if chance.random() < liked else -1) for _ in range(number)]


def test_many_verdicts_on_the_other_model_make_up_for_few_on_this_one() -> None:
    """At a small share there are many of them, and each is one conversation."""

    def needed(number: int) -> list[int]:
        found = []
        for seed in range(60):
            chance, heard = random.Random(seed), list[Reaction]()
            while as_good(heard) < ENOUGH:
                heard += upstream(chance, 0.7, number)
                heard.append(Reaction(1, "ann", 1 if chance.random() < 0.7 else -1))
            found.append(len(heard) // (number + 1))
        return found

    assert sum(needed(4)) < 0.75 * sum(needed(1))


def test_a_model_worse_by_the_margin_rarely_passes_however_often_one_looks() -> None:
    """The bet's own promise, with the largest stake's worth of luck: at most one in ``ENOUGH``."""
    passed = 0
    for seed in range(100):
        chance = random.Random(seed)
        heard, most = list[Reaction](), 0.0
        for _ in range(60):
            heard += upstream(chance, 0.9, number=1 + seed % 5)
            heard.append(Reaction(1, "ann", 1 if chance.random() < 0.75 else -1))
            most = max(most, as_good(heard))
        passed += most >= ENOUGH
    assert passed <= 100 / ENOUGH


def test_people_are_compared_with_themselves() -> None:
    hard = [Reaction(UPSTREAM_VERSION, "hard", -1)] * 40
    easy = [Reaction(1, "easy", 1)] * 40
    assert as_good([*hard, *easy]) == 1.0


@pytest.mark.parametrize("text", ["", "0,1", "0.5,0.5", "1.5", "1,0.5", "half"])
def test_shares_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match="rising shares"):
        take_over_shares(text)
