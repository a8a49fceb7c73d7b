"""Conversations that are the same word for word are each continued once."""

from __future__ import annotations

from openclaw_rl.capture.twins import Twins


def test_each_of_two_that_are_asked_one_after_the_other_gets_the_same_words() -> None:
    """The same question, the same reply, the same complaint; then all of it once more."""
    twins = Twins(10)
    twins.add("chain", "t1", "s1")
    assert twins.pick("chain", "shorter", None, ("t1", "s1"))[0] == ("t1", "s1")
    twins.add("chain", "t2", "s2")
    assert twins.pick("chain", "shorter", None, ("t2", "s2"))[0] == ("t2", "s2")
    assert twins.pick("chain", "shorter", None, ("t2", "s2"))[0][0] in ("t1", "t2"), "a retry"


def test_each_of_two_at_once_gets_one() -> None:
    twins = Twins(10)
    twins.add("chain", "t1", "s1")
    twins.add("chain", "t2", "s2")
    picked = [twins.pick("chain", said, None, ("t2", "s2"))[0] for said in ("shorter", "longer")]
    assert sorted(picked) == [("t1", "s1"), ("t2", "s2")]


def test_a_retry_goes_where_the_request_went() -> None:
    twins = Twins(10)
    twins.add("chain", "t1", "s1")
    twins.add("chain", "t2", "s2")
    first = twins.pick("chain", "shorter", None, ("t2", "s2"))[0]
    assert twins.pick("chain", "shorter", None, ("t2", "s2"))[0] == first


def test_what_was_on_the_side_leaves_it_free() -> None:
    twins = Twins(10)
    twins.add("chain", "t1", "s1")
    twins.add("chain", "t2", "s2")
    (_, session), claim = twins.pick("chain", "title", None, ("t2", "s2"))
    assert claim is not None
    twins.release(claim)
    picked = [twins.pick("chain", said, None, ("t2", "s2"))[0][1] for said in ("shorter", "longer")]
    assert sorted(picked) == ["s1", "s2"]
    assert session in picked
