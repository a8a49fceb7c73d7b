"""Wishes of one person: the same again, another one, one in place of another, one taken back."""

from __future__ import annotations

from collections import Counter

import pytest

from openclaw_rl.evals.wishes.plan import _TAKEN_BACK
from openclaw_rl.evals.wishes.wish import WishCase, drawn, written
from openclaw_rl.forms.wish_reading import read_parts
from openclaw_rl.forms.wish_table import LANGUAGES, table_of
from openclaw_rl.judge.hints import verbatim_hints
from openclaw_rl.judge.shots import read_cases
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.types import JudgeCase

FRENCH, LISTS, PIRATE = (
    "Please answer in French.",
    "Please give a numbered list.",
    "Please talk like a pirate.",
)


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("Not in English. Answer in French.", FRENCH, "same"),
        ("Still too long, one short sentence please.", "Please answer in one short sentence.", "same"),
        ("No, say it like a pirate would.", PIRATE, "same"),
        ("I want you to end with That is all.", "Please end with the words That is all.", "same"),
        ("Please end with That is all.", "Please end with that is all!", "same"),
        ("Please end with And now you.", "Please end with That is all.", "replaces"),
        ("Please answer in Spanish.", FRENCH, "replaces"),
        ("I want long answers with much detail.", "Keep it to one short sentence.", "replaces"),
        ("Please begin with Well now.", "Please begin with In short.", "replaces"),
        ("Write everything in capital letters.", "Please write in lowercase letters.", "replaces"),
        ("Please talk like a robot.", PIRATE, "replaces"),
        ("You can stop with the numbered lists.", LISTS, "takes back"),
        ("You don't have to talk like a pirate any more.", PIRATE, "takes back"),
        ("Please answer normally again.", FRENCH, "takes back"),
        ("You can stop with the lists.", LISTS, "takes back"),
        ("Please answer in French.", LISTS, "other"),
        ("Please end with I hope this helps.", PIRATE, "other"),
        ("Please begin with the words Good question.", "Please answer in one short sentence.", "other"),
    ],
)
def test_what_a_wish_does_to_an_earlier_one(new: str, old: str, expected: str) -> None:
    assert relation(new, old) == expected


def test_taking_back_may_come_with_another_wish() -> None:
    assert is_only_taking_back("You can stop with the numbered lists.", LISTS)
    assert not is_only_taking_back("No more numbered lists, talk like a pirate instead.", LISTS)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Please answer in French.", True),
        ("Too long. At most ten words.", True),
        ("You forgot to call me buddy.", True),
        ("No capital letters at all, please.", True),
        ("You can stop with the lists.", True),
        ("That is not about what I asked.", False),
        ("That is wrong.", False),
        ("It was Canberra.", False),
    ],
)
def test_a_remark_about_one_reply_is_no_wish(said: str, expected: bool) -> None:
    assert is_wish(said) is expected


@pytest.mark.parametrize(
    "error",
    ["command timed out", "no such file", "permission denied", "invalid argument", "it broke in many words"],
)
def test_a_failed_call_is_nobodys_wish(error: str) -> None:
    """The rules say it in words of their own; "it took too long" is about the tool, not about replies."""
    state = [{"role": "tool", "name": "run", "content": f"Error: {error}"}]
    case = JudgeCase([{"role": "user", "content": "Run it."}], {"role": "assistant", "content": ""}, state)
    hints = verbatim_hints(case)
    assert hints
    assert not any(is_wish(hint) for hint in hints)


@pytest.mark.parametrize(
    "said",
    [
        "It takes twice as long now.",
        "The film is three hours long.",
        "Oh perfect, I always wanted to be broke.",
        "Great, I have always dreamed of losing my files.",
        "We never had a dog.",
        "The river was never that wide.",
    ],
)
def test_long_and_always_alone_make_no_wish(said: str) -> None:
    assert not is_wish(said)


# --- the labelled cases --------------------------------------------------------------------------


def test_the_halves_are_of_the_same_kind_and_share_nothing() -> None:
    half, other = read_cases("wishes"), read_cases("wishes-heldout")
    assert not {row["said"] for row in half} & {row["said"] for row in other}
    for rows in (half, other):
        assert Counter(row["wish"] for row in rows) == {True: 195, False: 195}
        assert Counter(row["language"] for row in rows) == {
            language: 70 if language == "english" else 32 for language in LANGUAGES
        }
    pairs = [{(row["old"], row["new"]) for row in read_cases(f"relations{end}")} for end in ("", "-heldout")]
    assert not pairs[0] & pairs[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_wishes_and_remarks_are_told_apart(language: str) -> None:
    """Those that the tables were written against."""
    rows = [row for row in read_cases("wishes") if row["language"] == language]
    assert [row["said"] for row in rows if is_wish(row["said"]) is not row["wish"]] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_how_wishes_stand_to_each_other(language: str) -> None:
    rows = [row for row in read_cases("relations") if row["language"] == language]
    found = {(row["old"], row["new"]): relation(row["new"], row["old"]) for row in rows}
    wrong = {pair: got for row in rows if (got := found[pair := (row["old"], row["new"])]) != row["relation"]}
    assert wrong == {}


def test_the_other_half_is_told_apart_as_well() -> None:
    """Not looked at while the tables were written; only numbers are shown, so that it stays so."""
    counts = Counter((row["wish"], is_wish(row["said"])) for row in read_cases("wishes-heldout"))
    assert counts[True, True] >= 0.95 * (counts[True, True] + counts[True, False])
    assert counts[True, True] >= 0.95 * (counts[True, True] + counts[False, True])
    rows = read_cases("relations-heldout")
    right = sum(relation(row["new"], row["old"]) == row["relation"] for row in rows)
    assert right >= 0.95 * len(rows)


def test_unusual_wording_is_mostly_understood() -> None:
    """What was not understood at first sight is told in docs/lab/judge.md; here, that it becomes no worse."""
    counts = Counter((row["wish"], is_wish(row["said"])) for row in read_cases("wishes-fresh"))
    assert counts[True, True] >= 0.8 * (counts[True, True] + counts[True, False])
    assert counts[False, True] <= 2
    rows = read_cases("relations-fresh")
    assert sum(relation(row["new"], row["old"]) == row["relation"] for row in rows) >= 0.85 * len(rows)


def test_what_people_say_in_a_chat_becomes_a_wish() -> None:
    """From the whole message to the wish: 30 wishes and 10 others of each half; only one was looked at."""
    found: Counter[tuple[bool, bool]] = Counter()
    for row in read_cases("wishes-chat"):
        case = JudgeCase(
            [{"role": "user", "content": "How do bees make honey?"}],
            {"role": "assistant", "content": "Bees make honey from nectar."},
            [{"role": "user", "content": row["said"]}],
        )
        found[row["wish"], any(is_wish(hint) for hint in verbatim_hints(case))] += 1
    assert found[True, True] >= 54
    assert found[False, True] == 0


@pytest.mark.parametrize("wish", [*written().values(), *drawn("any", 40)], ids=lambda wish: wish.name)
def test_what_simulated_people_say_again_is_the_same_wish(wish: WishCase) -> None:
    assert all(is_wish(said) for said in wish.says)
    first, *others = wish.says
    if wish.name != "circle":  # said in no word of the first
        assert {relation(said, first) for said in others} <= {"same"}
    assert relation(_TAKEN_BACK, first) == "takes back"
    assert is_only_taking_back(_TAKEN_BACK, first)


def test_remarks_in_other_languages_stay_remarks() -> None:
    """Of what was labelled for the judge: facts, and that something is missing, are no wishes."""
    facts = [row for row in read_cases("languages") if row["hint"] in ("Canberra", "Ottawa", "Brasilia")]
    assert facts
    assert not any(is_wish(row["next_state"][-1]["content"]) for row in facts)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_table_has_what_the_reader_asks_for(language: str) -> None:
    forms = table_of(language).forms
    needed = ("lead", "do", "want", "always", "back", "all", "and", "filler", "no", "less", "too", "states")
    named = ("opening", "ending", "address", "voice", "question", "in_language", "most", "least", "exactly")
    assert [name for name in (*needed, *named) if name not in forms] == []


@pytest.mark.parametrize(
    ("said", "points"),
    [
        ("Please begin with Short answer.", {"opening": "short answer"}),
        ('Don\'t start with "Certainly".', {"opening": "not certainly"}),
        ("No more than two sentences.", {"length": "2 sentence"}),
        ("Write at least 100 words.", {"length": "least 100 word"}),
        ("Not in English.", {"language": "not english"}),
        ("Set it in a numbered list.", {"layout": "numbered"}),
        ("Begin every answer with Salt and pepper.", {"opening": "salt and pepper"}),
        ("Antworte in höchstens zwei kurzen Sätzen.", {"length": "2 sentence"}),
        ("Réponds en anglais.", {"language": "english"}),
        ("请用两句话回答", {"length": "2 sentence"}),
        ("英語で答えて", {"language": "english"}),
    ],
)
def test_what_a_wish_is_about(said: str, points: dict[str, str]) -> None:
    assert [dict(part.points) for part in read_parts(said)] == [points]


def test_one_sentence_may_ask_for_two_things() -> None:
    points = [dict(part.points) for part in read_parts("Please answer in one sentence and call me Captain.")]
    assert points == [{"length": "1 sentence"}, {"address": "captain"}]
