"""One sentence says whether it learns, and what."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.processes.headline import headline


def told(
    *wishes: tuple[str, str], good: int = 0, of: int = 0, by: int = 0, serving: int = 0, **more: Any
) -> str:
    versions = [{"version": by, "good": good, "of": of}] if of else []
    first = {"versions": versions, "last": {"good": good, "of": of}}
    rows = [{"text": text, "state": state, "reason": more.pop("reason", None)} for text, state in wishes]
    return headline(rows, first, serving=serving, **{"stage": None, **more})


def test_before_anything_was_said_it_says_what_to_do() -> None:
    assert told() == "Nothing to learn from yet. Talk to it and tell it how to answer better."


def test_what_works_what_is_being_learned_and_what_never_will() -> None:
    said = told(
        ("Short answers.", "learned"), ("Be polite", "not yet"), ("French", "not possible"),
        good=4, of=5, by=3, serving=3,
    )  # fmt: skip
    assert said == (
        "Learning: “Short answers” works now; 4 of your last 5 first replies were right; "
        "“Be polite” is being learned; “French” is not possible with this model."
    )


def test_first_replies_of_earlier_versions_are_not_taken_for_the_new_one_s() -> None:
    said = told(("Short answers", "learned"), of=2, by=0, serving=1)
    assert said.endswith("works now; before version 1, 0 of your last 2 first replies were right.")


@pytest.mark.parametrize(("stage", "word"), [("training", "trained"), ("candidate", "checked")])
def test_it_says_that_a_version_is_being_made(stage: str, word: str) -> None:
    said = told(("A", "not yet"), stage=stage)
    assert said == f"Learning: “A” is being learned; a new version is being {word}."


def test_a_wish_whose_last_version_was_rejected_is_not_called_being_learned() -> None:
    said = told(("A", "not yet"), reason="version 2 failed its checks (on topic)")
    assert said == "Learning: “A” is not learned yet, since the last version failed its checks."


def test_a_learning_process_that_stopped_is_not_called_learning() -> None:
    assert told(("A", "learned"), is_running=False).startswith("It is not learning")
