"""Requests that a wish is taught on, and the steps that are made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.evals.wishes.items import items
from openclaw_rl.render import create_renderer
from openclaw_rl.testing import ScriptedTrainer, byte_tokenizer
from openclaw_rl.train.exam import draw_items, gate_requests
from openclaw_rl.train.prompts import Prompts, _lines
from openclaw_rl.train.steps import TrainingSet, take_steps
from openclaw_rl.types import (
    Ask,
    Example,
    Message,
    SamplingParams,
    Tool,
    TurnRecord,
)
from tests.train.conftest import make_item

RENDERER = create_renderer(byte_tokenizer(), name="qwen3")
WISH = "Please answer in French."
LOOK: Tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}


@dataclass
class Request:
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    thinking: bool | None = None


REQUESTS: dict[str, Request] = {}


def turn(text: str, tools: Sequence[Tool] = (), before: Sequence[Message] = ()) -> TurnRecord:
    """A stored turn that asked this."""
    request = Request([*before, {"role": "user", "content": text}], list(tools))
    REQUESTS[text] = request
    return TurnRecord(
        text, "s", "ann", "chat", "main", [], list(tools) or None, {}, {},
        RENDERER.render(request.messages, request.tools), [], SamplingParams(64), 0, "stop", 0.0,
    )  # fmt: skip


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(RENDERER, lambda turn: REQUESTS[turn.id], lambda message: False)


def plain(ask: Ask) -> str:
    return asked(ask.prompt_ids)


def asked(ids: Sequence[int]) -> str:
    """What the user said in a prompt."""
    text = b"".join(RENDERER.token_bytes(i) for i in ids).decode()
    return text.rpartition("user\n")[2].partition("<|im_end|>")[0].strip()


def questions() -> set[str]:
    return {line.partition("|")[0] for line in _lines("questions.txt")}


def test_right_answers_are_known_to_questions_alone(prompts: Prompts) -> None:
    asks = prompts.asks(turn("What is rain?"), [], WISH, 16)
    known = {line.partition("|")[0]: line.partition("|")[2] for line in _lines("questions.txt")}
    assert {plain(ask): "/".join(ask.right) for ask in asks if ask.right} == {
        plain(ask): known[plain(ask)] for ask in asks if plain(ask) in known
    }
    assert sum(bool(ask.right) for ask in asks) == 4


def test_no_question_is_asked_by_the_gate_or_the_evaluation() -> None:
    """Nor in their words: what a version is examined on is not what it was trained on."""
    asked = [item.messages[-1]["content"] for item in (*draw_items(False, None, 0), *items(1000))]
    words = {frozenset(str(text).lower().strip("?.").split()) for text in asked}
    for question in questions():
        mine = frozenset(question.lower().strip("?.").split())
        assert all(len(mine & each) < 0.7 * len(mine) for each in words), question


def test_first_the_request_itself_then_the_persons_others_then_everyday_ones(prompts: Prompts) -> None:
    own, others = turn("What is rain?"), [turn(f"Question {n}?") for n in range(3)]
    asks = prompts.asks(own, others, WISH, 8)
    said = [plain(ask) for ask in asks]
    assert said[:4] == ["What is rain?", "Question 0?", "Question 1?", "Question 2?"]
    assert len(said) == len(set(said)) == 8
    assert set(said[4:6]) <= questions()
    assert set(said[6:]) <= set(_lines("requests.txt"))
    assert all(asked(ask.hinted_ids) == f"{plain(ask)}\n\n{WISH}" for ask in asks)


def test_everyday_ones_are_the_same_whenever_they_are_chosen_and_differ_between_turns(
    prompts: Prompts,
) -> None:
    first, second = turn("What is rain?"), turn("What is snow?")
    assert prompts.asks(first, [], WISH, 8) == prompts.asks(first, [], WISH, 8)
    assert prompts.asks(first, [], WISH, 8)[1:] != prompts.asks(second, [], WISH, 8)[1:]


def test_half_of_them_at_most_are_the_persons_others(prompts: Prompts) -> None:
    asks = prompts.asks(turn("What is rain?"), [turn(f"Question {n}?") for n in range(12)], WISH, 8)
    assert sum(plain(ask).startswith("Question") for ask in asks) == 4
    assert len(asks) == 8


def test_long_ones_and_those_with_tools_are_left_out_of_the_others(prompts: Prompts) -> None:
    long, tools = turn("What is that? " + "x" * 600), turn("What time is it?", [LOOK])
    asks = prompts.asks(turn("What is rain?"), [long, tools], WISH, 4)
    assert {plain(ask) for ask in asks[1:]} <= {*_lines("requests.txt"), *questions()}
    # The one complained about is taken, whatever it is.
    assert prompts.asks(long, [], WISH, 4)[0].prompt_ids == long.prompt_ids
    assert prompts.asks(tools, [], WISH, 4)[0].prompt_ids == tools.prompt_ids


def test_one_that_cannot_be_rebuilt_is_left_out(prompts: Prompts) -> None:
    own = turn("What is rain?")
    REQUESTS[own.id] = Request([{"role": "user", "content": "something else"}])
    asks = prompts.asks(own, [], WISH, 4)
    assert len(asks) == 4
    assert own.prompt_ids not in [ask.prompt_ids for ask in asks]


def test_without_a_wish_requests_are_asked_as_they_are(prompts: Prompts) -> None:
    for ask in prompts.asks(turn("What is rain?"), [turn("Question 1?")], "", 6):
        assert ask.hinted_ids == ask.prompt_ids


def test_nothing_is_taught_on_what_versions_are_checked_by() -> None:
    assert not set(gate_requests()) & set(_lines("requests.txt"))


# --- the steps of a version --------------------------------------------------------------------


def heard_by(trainer: ScriptedTrainer) -> list[list[str]]:
    """The turns of each step's examples."""
    return [[example.source.turn_ids[0] for example in batch.examples] for batch in trainer.batches]


def examples(start: int, number: int) -> list[Example]:
    return [make_item(n, 4, 2) for n in range(start, start + number)]


def named(found: Sequence[Example]) -> set[str]:
    return {example.source.turn_ids[0] for example in found}


def test_steps_are_the_same_whenever_they_are_taken() -> None:
    training_set = TrainingSet(examples(0, 12), examples(100, 12), examples(200, 12))
    runs = [ScriptedTrainer() for _ in range(3)]
    for trainer, version in zip(runs, (7, 7, 8), strict=True):
        take_steps(trainer, Hinted(), training_set, {}, version, 6)
    assert heard_by(runs[0]) == heard_by(runs[1]) != heard_by(runs[2])


def test_two_thirds_of_a_step_are_new_and_every_step_holds_anchors() -> None:
    training_set = TrainingSet(examples(0, 12), examples(100, 12), examples(200, 12))
    trainer, algorithm = ScriptedTrainer(), Hinted(steps=5, step_examples=9, anchors=4)
    result = take_steps(trainer, algorithm, training_set, {}, 1, 0)
    assert len(heard_by(trainer)) == 5
    parts = (training_set.new, training_set.replayed, training_set.anchors)
    for step in heard_by(trainer):
        counts = [len(set(step) & named(part)) for part in parts]
        assert counts == [6, 3, 4]
    assert (result.scale, result.report.num_tokens) == (algorithm.scale, 5 * 13 * 6)


def test_every_example_is_used_equally_often() -> None:
    trainer = ScriptedTrainer()
    take_steps(trainer, Hinted(steps=8, step_examples=8), TrainingSet(examples(0, 14), [], []), {}, 1, 0)
    assert all(len(set(step)) == 8 for step in heard_by(trainer))
    times = Counter(name for step in heard_by(trainer) for name in step)
    assert (len(times), min(times.values()), max(times.values())) == (14, 4, 5)


def test_where_nothing_is_heard_again_a_step_is_all_new() -> None:
    trainer = ScriptedTrainer()
    take_steps(
        trainer, Hinted(steps=1, step_examples=8, anchors=2), TrainingSet(examples(0, 12), [], []), {}, 1, 0
    )
    assert [len(step) for step in heard_by(trainer)] == [8]
    take_steps(
        trainer, Hinted(steps=1, step_examples=8), TrainingSet(examples(0, 3), examples(100, 2), []), {}, 1, 0
    )
    assert len(heard_by(trainer)[1]) == 5


@pytest.mark.parametrize(("most", "used"), [(20, 12), (8, 8)])
def test_a_step_uses_more_of_what_the_told_model_said(most: int, used: int) -> None:
    told = [replace(example, is_told=True) for example in examples(0, 12)]
    training_set = TrainingSet([*told, *examples(50, 6)], examples(100, 9), [])
    trainer = ScriptedTrainer()
    take_steps(trainer, Hinted(steps=3, step_examples=6, step_told=most), training_set, {}, 1, 0)
    parts = (told, training_set.new[12:], training_set.replayed)
    for step in heard_by(trainer):
        assert [len(set(step) & named(part)) for part in parts] == [used, 4, 2]
    times = Counter(name for step in heard_by(trainer) for name in set(step) & named(told))
    assert len(times) == 12
    assert max(times.values()) - min(times.values()) <= 1


def test_weights_that_are_not_numbers_end_the_steps() -> None:
    trainer = ScriptedTrainer(breaks_at=2)
    result = take_steps(trainer, Hinted(steps=4), TrainingSet(examples(0, 8), [], []), {}, 1, 0)
    assert (len(heard_by(trainer)), result.report.finite) == (2, False)
