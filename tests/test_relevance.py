"""Whether a reply names what was asked about."""

from __future__ import annotations

import pytest

from openclaw_rl.relevance import loops, names, own_words, stutters

REQUESTS = [
    "Tell me about trains.",
    "Tell me about wolves, please.",
    "My teacher asked us to talk about kangaroos tomorrow. What can I say?",
    "Wie backt man Brot?",
    "Hi!",
]


def test_own_are_the_words_that_the_others_do_not_have() -> None:
    own = own_words(REQUESTS)
    assert own[0] == {"train"}
    assert "kanga" in own[2]
    assert "brot" in own[3]
    assert own[4] == frozenset()


def test_what_everybody_asks_for_is_nobodys_own() -> None:
    assert own_words([f"Compare rivers with {thing}." for thing in ("trains", "wolves", "bread")])[0] == {
        "train"
    }


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Trains carry people and goods.", True),
        ("A TRAIN is on time.", True),
        ("That is a great topic!", False),
        ("I would like to tell you about something else.", False),
        ("", False),
    ],
)
def test_a_reply_names_what_was_asked_about_or_not(reply: str, expected: bool) -> None:
    assert names(reply, own_words(REQUESTS)[0]) is expected


@pytest.mark.parametrize(
    ("reply", "does"),
    [
        ("The Moon is a body, Captain Captain Captain, Captain.", True),
        ("Captain Jack, Captain Jack's just Captain Jack, Captain Jack, Captain Jack.", True),
        (
            "It is a wonder. It is a wonder. It is a wonder.",
            False,
        ),  # four words: whole sentences are counted elsewhere
        ("No, no, no! Not that one.", True),
        ("Very, very good.", False),
        ("Honey is made by bees, Captain. It keeps for years, Captain.", False),
        ("1. Bees\n2. Bees\n3. Bees", False),
        ("", False),
    ],
)
def test_stuttering(reply: str, does: bool) -> None:
    assert stutters(reply) == does


ORDINARY = (
    "To plant a tree, dig a hole twice as wide as its roots and just as deep. Set the tree upright, fill the "
    "hole with soil, and press it down gently. Water it well on the first day and twice a week after that. "
    "A stake keeps it straight in the wind until the roots hold."
)


@pytest.mark.parametrize(
    ("reply", "does"),
    [
        (ORDINARY, False),
        ("Boil the egg:\n\n" * 20, True),
        (ORDINARY + " There is no answer to that question, but I can tell you more." * 6, True),
        (ORDINARY + " Water it well on the first day.", False),  # once more is no loop
        ("Bread. " * 10, False),  # too short to tell: stuttering
    ],
)
def test_replies_that_loop(reply: str, does: bool) -> None:
    assert loops(reply) == does
