from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.text import well_formed

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(anything)
def test_every_result_can_be_written_as_utf_8(value: object) -> None:
    assert json.dumps(well_formed(value), ensure_ascii=False).encode()


@given(st.text())
def test_proper_text_is_left_alone(text: str) -> None:
    assert well_formed(text) == text


def test_halves_are_replaced_and_pairs_joined() -> None:
    assert well_formed({"a\ud83d": ["x\ud83d", "\ud83d\ude00", "\ude00\ud83d"]}) == {"a�": ["x�", "😀", "��"]}
