from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.serve.stopping import StopText

# Few letters, so that stop strings overlap, repeat and almost occur.
text = st.text("abc", max_size=40)
stops = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def cut(whole: str, stop_strings: list[str]) -> str:
    """What may be shown, looking at the whole text as it grows character by character."""
    for end in range(len(whole) + 1):
        seen = whole[:end]
        found = [seen.find(stop) for stop in stop_strings if stop in seen]
        if found:
            return seen[: min(found)]
    return whole


@given(text, stops, st.data())
def test_any_split_shows_the_text_up_to_the_first_stop_string(
    whole: str, stop_strings: list[str], data: st.DataObject
) -> None:
    stopping, shown, rest = StopText(stop_strings), "", whole
    while rest and not stopping.stopped:
        size = data.draw(st.integers(1, len(rest)))
        shown, rest = shown + stopping.feed(rest[:size]), rest[size:]
    shown += stopping.finish()
    assert stopping.stopped == any(stop in whole for stop in stop_strings)
    assert not any(stop in shown for stop in stop_strings)
    assert whole.startswith(shown)


@given(text, stops)
def test_fed_one_character_at_a_time_it_equals_the_definition(whole: str, stop_strings: list[str]) -> None:
    stopping = StopText(stop_strings)
    shown = "".join(stopping.feed(char) for char in whole)
    assert shown + stopping.finish() == cut(whole, stop_strings)


@given(text, stops)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(whole: str, stop_strings: list[str]) -> None:
    stopping = StopText(stop_strings)
    shown = "".join(stopping.feed(char) for char in whole)
    held = whole[len(shown) :]
    if not stopping.stopped:
        assert not held or any(stop.startswith(held) for stop in stop_strings)


def test_after_the_stop_nothing_passes() -> None:
    stopping = StopText(["END", ""])
    assert stopping.feed("oneE") == "one"
    assert stopping.feed("NDtwo") == ""
    assert (stopping.stopped, stopping.feed("three"), stopping.finish()) == (True, "", "")
