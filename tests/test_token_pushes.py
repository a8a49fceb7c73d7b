"""What the view of a turn says was learned from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from openclaw_rl.models import eos_ids
from openclaw_rl.processes.token_pushes import taught_answers
from openclaw_rl.render import create_renderer
from openclaw_rl.types import Example, Renderer, Source, text_example


@pytest.fixture(scope="module")
def renderer(model_path: Path) -> Renderer:
    return create_renderer(AutoTokenizer.from_pretrained(model_path), "llama", None, eos_ids(model_path))


def example(renderer: Renderer, kind: str, asked: str, answer: str) -> Example:
    prompt = renderer.render([{"role": "user", "content": asked}])
    full = renderer.render([{"role": "user", "content": asked}, {"role": "assistant", "content": answer}])
    said = full[len(prompt) :]
    ids = said[: 1 + min(said.index(stop) for stop in renderer.stop_ids if stop in said)]
    return text_example(prompt, ids, Source(kind, ("t1",), hint="shorter"), 1.0)  # type: ignore[arg-type]


def test_the_answers_of_the_teacher_with_what_they_answer(renderer: Renderer) -> None:
    made = [
        example(renderer, "hinted", "Why is rain wet?\n# or is it?", "Because it is water."),
        example(renderer, "own", "Why is rain wet?", "Well, that is a long story."),
    ]
    assert taught_answers(made, renderer) == [
        {"asked": "Why is rain wet?\n# or is it?", "answer": "Because it is water."}
    ]


def test_secrets_are_masked(renderer: Renderer) -> None:
    secret = "sk-" + "a1B2c3D4e5F6g7H8" * 3
    [shown] = taught_answers([example(renderer, "hinted", f"Use {secret}", "Yes.")], renderer)
    assert secret not in shown["asked"]
    assert shown["asked"].startswith("Use ")
