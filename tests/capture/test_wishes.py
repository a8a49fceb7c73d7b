"""What a person wishes for, in the ledger: the same again, replaced, taken back, given up, paused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.serve_ledger import sqlite_url
from openclaw_rl.capture.wishes import (
    ACTIVE,
    GOES_NOWHERE,
    NOT_LEARNABLE,
    PAUSED,
    REPLACED,
    SET_ASIDE,
    TAKEN_BACK,
    Wishes,
    WishRecord,
    list_wishes,
)
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.types import EVERYONE, SamplingParams, TurnRecord

LISTS, FRENCH = "Please give a numbered list.", "Please answer in French."


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LearnLedger]:
    ledger = LearnLedger(sqlite_url(tmp_path / "learn.db"))
    yield ledger
    ledger.close()


@pytest.fixture
def book(ledger: LearnLedger) -> Wishes:
    return Wishes(ledger, relation, is_only_taking_back, is_wish)


def turn(number: int, user: str = "ann", version: int = 0) -> TurnRecord:
    return TurnRecord(
        f"t{number}", "s", user, "chat", "main", [], None, {}, {}, [1], [], SamplingParams(9), version,
        "stop", float(number),
    )  # fmt: skip


def became(ledger: LearnLedger) -> dict[str, str]:
    return {wish.text: wish.status for wish in list_wishes(ledger, "ann")}


def test_the_same_again_is_one_wish(book: Wishes) -> None:
    first = book.take_up(turn(1), FRENCH, 0)
    again = book.take_up(turn(2), "Not in English. Answer in French.", 3)
    assert first == again == WishRecord("t1", EVERYONE, "ann", FRENCH, ACTIVE, 1.0, None, 0, 0, 0, 0)
    assert book.texts("ann", EVERYONE) == (FRENCH,)
    assert book.texts("ben", EVERYONE) == ()


def test_wishes_about_different_things_hold_together(book: Wishes) -> None:
    book.take_up(turn(1), FRENCH, 0)
    book.take_up(turn(2), LISTS, 1)
    assert book.current("ann", EVERYONE) == f"{FRENCH} {LISTS}"


def test_one_takes_the_place_of_another(book: Wishes, ledger: LearnLedger) -> None:
    book.take_up(turn(1), FRENCH, 0)
    book.take_up(turn(2), "Please answer in Spanish.", 1)
    assert became(ledger) == {FRENCH: REPLACED, "Please answer in Spanish.": ACTIVE}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("Please answer in three sentences.", "Please answer in one sentence."),
        ("Please call me Anna.", "Please call me Captain."),
        ("Please don't use emojis.", "Please use emojis."),
        ("Please answer in one sentence.", "No more than two sentences."),
    ],
)
def test_contradicting_wishes_replace_each_other(
    book: Wishes, ledger: LearnLedger, first: str, then: str
) -> None:
    book.take_up(turn(1), first, 0)
    book.take_up(turn(2), then, 1)
    assert became(ledger) == {first: REPLACED, then: ACTIVE}


def test_normal_letters_take_back_no_other_wish(book: Wishes) -> None:
    one, normal = "Please answer in one sentence.", "Please write it in normal letters."
    book.take_up(turn(1), one, 0)
    assert book.take_up(turn(2), normal, 0) is not None
    assert book.texts("ann", EVERYONE) == (one, normal)


def test_one_is_taken_back(book: Wishes, ledger: LearnLedger) -> None:
    book.take_up(turn(1), LISTS, 0)
    assert book.take_up(turn(2), "You can stop with the numbered lists.", 1) is None
    assert book.current("ann", EVERYONE) == ""
    [wish] = book.ending(EVERYONE)
    assert (wish.is_unwanted, wish.problem) == (True, None)
    book.ended(wish)
    assert became(ledger) == {LISTS: TAKEN_BACK}
    assert book.ending(EVERYONE) == []


def test_what_a_wish_had_replaced_is_known_when_it_is_taken_back(book: Wishes) -> None:
    book.take_up(turn(1), "Please answer in Spanish.", 2)
    book.take_up(turn(2), LISTS, 3)
    book.take_up(turn(3), FRENCH, 3)
    book.take_up(turn(4), "You don't have to answer in French any more.", 6)
    [french] = book.ending(EVERYONE)
    assert [wish.text for wish in book.over_since(french)] == ["Please answer in Spanish."]
    assert book.end_of(french) == TAKEN_BACK
    book.take_up(turn(5), FRENCH, 2)
    assert [wish.served for wish in book.of_user("ann", EVERYONE)] == [3, 2]


def test_whatever_was_taken_up_can_be_taken_up_again_after_a_kill(book: Wishes, ledger: LearnLedger) -> None:
    """The verdict was not settled, so it comes once more."""
    for number, text in enumerate(
        (LISTS, FRENCH, "Please answer in Spanish.", "You can stop with the lists.")
    ):
        once, after = book.take_up(turn(number), text, 0), became(ledger)
        assert book.take_up(turn(number), text, 0) == once
        assert became(ledger) == after
    assert book.texts("ann", EVERYONE) == ("Please answer in Spanish.",)


def test_six_replies_that_knew_of_it_and_failed_end_it(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 7)
    for number in range(2, 8):
        assert book.texts("ann", EVERYONE) == (LISTS,)
        book.take_up(turn(number), LISTS, 7)
        book.failed(turn(number))
    [wish] = book.ending(EVERYONE)
    assert (wish.served, wish.tried) == (7, 6)
    assert book.texts("ann", EVERYONE) == ()
    again = book.take_up(turn(9), LISTS, 8)
    assert again is not None
    assert again.problem == "the model does not manage this even when told"
    book.ended(wish)
    assert book.ending(EVERYONE) == []
    assert [w.status for w in book.of_user("ann", EVERYONE, (NOT_LEARNABLE,))] == [NOT_LEARNABLE]


def test_a_reply_that_pleased_shows_that_it_can_be_done(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    book.accepted(turn(0), again=True)  # given before the wish: says nothing about it
    assert book.of_user("ann", EVERYONE)[0].accepted == 0
    book.accepted(turn(2), again=True)
    for number in range(3, 9):
        book.take_up(turn(number), LISTS, 0)
        book.failed(turn(number))
    assert book.texts("ann", EVERYONE) == (LISTS,)


def test_a_reply_fails_only_the_wish_that_it_was_complained_about_for(book: Wishes) -> None:
    book.take_up(turn(1), FRENCH, 0)
    book.take_up(turn(2), LISTS, 0)
    for number in range(3, 6):
        book.take_up(turn(number), FRENCH, 0)
        book.failed(turn(number))
    book.failed(turn(9))  # complained about for something else
    assert {wish.text: wish.tried for wish in book.of_user("ann", EVERYONE)} == {FRENCH: 3, LISTS: 0}


def paused(book: Wishes) -> bool:
    return any(wish.problem for wish in book.ending(EVERYONE))


def test_five_failures_in_a_row_pause_a_wish(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    for _ in range(2):
        book.count_version(["t1", "of somebody else"], passed=False)
    for _ in range(3):
        book.count_version(["t1"], passed=True)
    assert not paused(book), "nobody has seen what the published ones can do"
    assert book.missed(turn(1)) is None, "the base's replies do not count"
    for version in (1, 2):
        book.take_up(turn(version + 2, version=version), LISTS, version)
        assert book.missed(turn(version + 2, version=version)) is None
    book.take_up(turn(5, version=3), LISTS, 3)
    assert book.missed(turn(5, version=3)) == GOES_NOWHERE
    [wish] = book.ending(EVERYONE)
    book.ended(wish)
    assert [w.status for w in book.of_user("ann", EVERYONE, (PAUSED,))] == [PAUSED]


def test_versions_made_for_others_do_not_fail_a_wish_that_none_was_made_for(book: Wishes) -> None:
    """A policy that people share may get many versions before it is this wish's turn."""
    book.take_up(turn(1), LISTS, 0)
    for version in range(1, 8):
        book.take_up(turn(version + 1, version=version), LISTS, version)
        assert book.missed(turn(version + 1, version=version)) is None
    assert [wish.in_vain for wish in book.of_user("ann", EVERYONE)] == [0]


def test_a_complaint_that_comes_again_after_a_kill_counts_once(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    book.count_version(["t1"], passed=True)
    for number in (7, 7, 8, 8):
        book.missed(turn(number, version=1), number)
    assert [wish.in_vain for wish in book.of_user("ann", EVERYONE)] == [2]


@pytest.mark.parametrize(("again", "left"), [(True, 4), (False, 0)], ids=["when told again", "at once"])
def test_only_a_reply_that_pleases_at_once_ends_the_row(book: Wishes, again: bool, left: int) -> None:
    book.take_up(turn(1), LISTS, 0)
    book.count_version(["t1"], passed=True)
    for number in range(2, 6):
        book.missed(turn(number, version=1))
    book.accepted(turn(6, version=1), again=again)
    [wish] = book.of_user("ann", EVERYONE)
    assert (wish.in_vain, wish.accepted) == (left, 1)


def test_praise_for_the_base_or_an_earlier_version_leaves_the_row(book: Wishes) -> None:
    """Some conversations stay with the version before; their replies show nothing about the later ones."""
    book.take_up(turn(1), LISTS, 1)
    book.count_version(["t1"], passed=False)
    for version in (0, 1):
        book.accepted(turn(2, version=version), again=False)
    [wish] = book.of_user("ann", EVERYONE)
    assert (wish.in_vain, wish.accepted) == (1, 2)


def test_five_rejected_versions_pause_a_wish(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    for _ in range(5):
        assert not paused(book)
        book.count_version(["t1"], passed=False)
    assert paused(book)


def test_a_complaint_after_eight_versions_pauses_a_wish_that_is_met_now_and_then(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    for version in range(1, 9):
        assert book.missed(turn(2, version=version - 1)) is None
        book.count_version(["t1"], passed=version % 2 == 0)
        book.accepted(turn(3, version=version), again=False)
    assert not paused(book), "the eighth has not disappointed anybody yet"
    assert book.missed(turn(4, version=8)) == GOES_NOWHERE


def test_a_complaint_that_names_no_wish_counts_for_all(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    book.take_up(turn(2), FRENCH, 0)
    book.count_version(["t1", "t2"], passed=True)
    book.missed(turn(3, version=1))
    assert [wish.in_vain for wish in book.of_user("ann", EVERYONE)] == [1, 1]
    book.take_up(turn(4), FRENCH, 1)
    book.missed(turn(4, version=1))
    assert [wish.in_vain for wish in book.of_user("ann", EVERYONE)] == [1, 2]


MANY = [
    FRENCH,
    LISTS,
    "Please talk like a pirate.",
    "Please end with Bye.",
    "Please write in lowercase.",
    "Please begin with Well now.",
    "Please call me Captain.",
    "Please use emojis.",
]


def test_versions_made_for_other_wishes_do_not_count(book: Wishes) -> None:
    """One version for each of four wishes, and no praise: none of them has failed."""
    for number, text in enumerate(MANY[:4]):
        book.take_up(turn(number), text, 0)
        book.count_version([f"t{number}"], passed=True)
    assert [wish.versions for wish in book.of_user("ann", EVERYONE)] == [1, 1, 1, 1]
    assert book.ending(EVERYONE) == []


def test_all_that_a_complaint_asks_for_again_counts(book: Wishes) -> None:
    book.take_up(turn(1), LISTS, 0)
    book.take_up(turn(2), LISTS, 1)
    book.count_version(["t1"], passed=True)
    book.count_version(["t2"], passed=True)
    book.count_version(["t1", "t2"], passed=True)
    assert [wish.versions for wish in book.of_user("ann", EVERYONE)] == [3]


def test_a_ninth_wish_sets_the_longest_unsaid_one_aside_and_says_so(
    book: Wishes, ledger: LearnLedger
) -> None:
    for number, text in enumerate(MANY):
        book.take_up(turn(number), text, 0)
    assert book.texts("ann", EVERYONE) == tuple(MANY)
    book.take_up(turn(20), FRENCH, 0)
    book.take_up(turn(21), "Please give an example.", 0)
    assert book.texts("ann", EVERYONE) == (FRENCH, *MANY[2:], "Please give an example.")
    [aside] = [wish for wish in list_wishes(ledger, "ann") if wish.status == SET_ASIDE]
    assert aside.text == LISTS
    assert aside.problem is not None
    assert aside.problem.startswith("set aside: ")
    assert "8 wishes" in aside.problem


def test_said_again_it_comes_back(book: Wishes, ledger: LearnLedger) -> None:
    for number, text in enumerate([*MANY, "Please give an example."]):
        book.take_up(turn(number), text, 0)
    assert became(ledger)[FRENCH] == SET_ASIDE
    again = book.take_up(turn(30), FRENCH, 0)
    assert again is not None
    assert (again.turn_id, again.status, again.problem) == ("t0", ACTIVE, None)
    assert FRENCH in book.texts("ann", EVERYONE)
    assert became(ledger)[LISTS] == SET_ASIDE
