"""Wishes of one person: the same again, another one, one in place of another, one taken back."""

from __future__ import annotations

import pytest

from openclaw_rl.judge.hints import verbatim_hints
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
