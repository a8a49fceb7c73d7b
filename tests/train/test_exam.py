"""What versions are asked: as it is written down, and how an answer counts."""

from __future__ import annotations

import json

from openclaw_rl.train.exam import draw_items
from openclaw_rl.train.prompts import _lines


def test_a_sample_is_the_same_whenever_it_is_drawn_and_differs_between_versions() -> None:
    assert draw_items(False, 24, seed=3) == draw_items(False, 24, seed=3) != draw_items(False, 24, seed=4)
    assert len(draw_items(False, None, seed=3)) == 92
    assert len(draw_items(True, None, seed=3)) == 60


def test_no_job_is_one_that_anchors_teach() -> None:
    taught = {message["content"] for line in _lines("anchors.jsonl") for message in json.loads(line)}
    assert not taught & {m["content"] for item in draw_items(True, None, 0) for m in item.messages}


def test_a_job_wants_few_words() -> None:
    job = next(item for item in draw_items(True, None, 0) if item.answers == ("1923",))
    assert job.is_right("1923")
    assert job.is_right("The year is 1923.")
    assert not job.is_right("The year that is mentioned in the text is 1923.")
    assert not job.is_right("1932")
