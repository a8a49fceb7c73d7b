"""Does the gate see a wish being lost? Versions whose replies are written here, letter by letter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from openclaw_rl.forms import read
from openclaw_rl.train.gate import Gate, Subject
from openclaw_rl.types import Ask, GenerateRequest, ScoreRequest

END = 0
THINGS = ("honey", "trains", "wolves", "bread", "chess", "rivers", "stars", "tea")


@dataclass
class Letters:
    """A renderer and detokenizer whose tokens are letters."""

    stop_ids: frozenset[int] = frozenset({END})

    def detokenizer(self) -> Letters:
        return self

    def feed(self, token_id: int) -> str:
        return chr(token_id)

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class Said:
    id: int
    logprob: float = -1.0


@dataclass(frozen=True)
class Scores:
    logprobs: list[float]


class Written:
    """An engine whose versions say what is written here of a request's thing."""

    def __init__(self, *says: str) -> None:
        self._says = says
        self.asked: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Said]:
        self.asked.append(request.policy_version)
        thing = "".join(map(chr, request.prompt_ids)).split("?")[0].rpartition(" ")[2]
        said = self._says[request.policy_version].format(thing)
        for letter in said[: request.sampling.max_tokens]:
            yield Said(ord(letter))
        if len(said) < request.sampling.max_tokens:
            yield Said(END)

    async def score(self, request: ScoreRequest) -> Scores:
        return Scores([-1.0] * (len(request.token_ids) - request.start))


def subject(*wishes: str) -> Subject:
    texts = [f"What about {thing}?" for thing in THINGS]
    hinted = " ".join(wishes)
    asks = [Ask(list(map(ord, text)), list(map(ord, f"{text} {hinted}")), text) for text in texts]
    return Subject(asks, hinted, read(wishes), wishes)


async def checked(engine: Written, version: int, parent: int, asked: Subject) -> dict[str, bool]:
    checks, _ = await gate_of(engine)._replies_for_all(version, parent, [asked])
    return {check.name: check.passed for check in checks}


def gate_of(engine: Written) -> Gate:
    unused: Any = None
    return Gate(engine, Letters(), unused, lambda text: None)  # type: ignore[arg-type]


PLAIN = "The story of {} is a long one that we love"
OPENED = "Well now, the story of {} is a long one that we love"


@pytest.mark.parametrize(
    ("says", "passed"),
    [
        ((PLAIN, OPENED, OPENED), True),
        ((PLAIN, OPENED, PLAIN), False),  # what its parent had learned is gone
        ((PLAIN, PLAIN, OPENED), True),
        ((PLAIN, PLAIN, PLAIN), True),  # nothing won, nothing lost
    ],
)
async def test_a_version_that_loses_the_form_its_parent_had_does_not_pass(
    says: Sequence[str], passed: bool
) -> None:
    found = await checked(Written(*says), 2, 1, subject("Please begin every answer with Well now."))
    assert found["in form"] == passed
    assert found["on topic"]


async def test_wishes_without_a_form_are_not_measured_by_one() -> None:
    assert "in form" not in await checked(Written(PLAIN, PLAIN, PLAIN), 2, 1, subject("Talk like a pirate."))


async def test_a_parent_is_asked_again_when_something_else_is_wished_for() -> None:
    """It had one form and is now held against two."""
    engine = Written(PLAIN, OPENED, f"{OPENED}. Bye")
    unused: Any = None
    gate = Gate(engine, Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    await gate._replies(1, 0, subject("Begin with Well now."))
    both = subject("Begin with Well now.", "End with Bye.")
    checks = {check.name: check for check in (await gate._replies(2, 1, both))[0]}
    assert checks["in form"].value == 1.0
    assert checks["in form"].bound == pytest.approx(-0.15)


async def test_a_reply_that_falls_apart_late_is_seen() -> None:
    """Most replies are cut before that; some are asked for at full length."""
    fine = "{} are a thing that people all over the world have known well for years"
    late = fine + " and call" + " Captain" * 20
    engine = Written(fine, late)
    unused: Any = None
    gate = Gate(engine, Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    [broken] = [c for c in (await gate._replies(1, 0, subject()))[0] if c.name == "broken replies"]
    assert 0 < broken.value < 1


async def test_a_check_says_on_which_side_of_its_bound_a_value_passes() -> None:
    """A value that equals it would not tell."""
    unused: Any = None
    gate = Gate(Written(PLAIN, PLAIN), Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    sides = {check.name: check.side for check in (await gate._replies(1, 0, subject()))[0]}
    assert {name for name, side in sides.items() if side == "at most"} == {"broken replies", "strangeness"}
    assert {sides["on topic"], sides["length"], sides["specificity"]} == {"at least"}


class Silent(Written):
    """Of replies that end at once nothing is left: such a server leaves out the token that ends them."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Said]:
        async for said in super().generate(request):
            if said.id != END:
                yield said


@pytest.mark.parametrize(("says", "passed"), [((PLAIN, ""), False), (("", PLAIN), True)])
async def test_replies_of_no_tokens_are_broken_and_break_no_check(says: Sequence[str], passed: bool) -> None:
    found = await checked(Silent(*says), 1, 0, subject())
    assert found["broken replies"] == passed


class OnceBroken(Written):
    """Version 1 breaks its reply to one request: for the seed it was first asked with, or always."""

    def __init__(self, fine: str, broken: str, *, always: bool) -> None:
        super().__init__(fine, fine)
        self._broken, self._always = broken, always
        self._first: tuple[list[int], int | None] | None = None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Said]:
        now = request.prompt_ids, request.sampling.seed
        if request.policy_version == 1 and self._first is None:
            self._first = now
        breaks = self._first is not None and request.policy_version == 1 and now[0] == self._first[0]
        says = self._broken if breaks and (self._always or now == self._first) else self._says[0]
        for letter in says[: request.sampling.max_tokens]:
            yield Said(ord(letter))
        yield Said(END)


@pytest.mark.parametrize("always", [False, True])
async def test_a_version_is_rejected_only_after_a_second_round_of_replies(always: bool) -> None:
    """One broken reply in eight is above the bound, and happens to a sound model now and then."""
    fine = "honey trains wolves bread chess rivers stars tea, they all are things of this world"
    engine = OnceBroken(fine, "so so so so so so so so so so so so", always=always)
    unused: Any = None
    gate = Gate(engine, Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    [broken] = [c for c in (await gate._replies(1, 0, subject()))[0] if c.name == "broken replies"]
    assert (broken.value, broken.passed) == ((1 / 8, False) if always else (1 / 16, True))


async def test_a_version_that_is_far_below_a_bound_is_not_asked_again() -> None:
    """All of its replies are broken: no second round could change that."""
    fine = "honey trains wolves bread chess rivers stars tea, they all are things of this world"
    engine = Written(fine, "so " * 12)
    unused: Any = None
    gate = Gate(engine, Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    [broken] = [c for c in (await gate._replies(1, 0, subject()))[0] if c.name == "broken replies"]
    assert (broken.value, broken.passed) == (1.0, False)
    assert engine.asked.count(1) == len(THINGS)


async def test_a_form_that_another_person_wished_for_is_not_lost_either() -> None:
    unused: Any = None
    gate = Gate(Written(PLAIN, OPENED, PLAIN), Letters(), unused, lambda text: None)  # type: ignore[arg-type]
    people = [subject("Talk like a pirate."), subject("Please begin every answer with Well now.")]
    checks, _ = await gate._replies_for_all(2, 1, people)
    assert [check.name for check in checks if not check.passed] == ["in form"]
    assert len({check.name for check in checks}) == len(checks), "each is listed once"


async def test_short_replies_pass_where_short_ones_are_wished_for_even_if_the_told_base_stays_long() -> None:
    long = "All about {0}. They are well known. " + "People everywhere have liked {0} for years. " * 4
    short = "{} are known."
    assert (await checked(Written(long, short), 1, 0, subject("Kürzer bitte.")))["length"]
    assert not (await checked(Written(long, short), 1, 0, subject("Talk like a pirate.")))["length"]


@pytest.mark.parametrize(
    ("base", "version", "as_told"),
    [
        (PLAIN, OPENED, True),  # telling the base does not help, the version does it
        (OPENED, OPENED, True),
        (OPENED, PLAIN, False),  # a note still helps more
        (OPENED, "Well now, I would rather not talk about it today", False),  # in form, and about nothing
    ],
)
async def test_a_wish_needs_no_note_if_it_is_met_as_well_as_by_the_told_base(
    base: str, version: str, as_told: bool
) -> None:
    wish = "begin every answer with Well now"
    _, found = await gate_of(Written(base, version))._replies_for_all(1, 0, [subject(wish)])
    assert found == {wish: as_told}
