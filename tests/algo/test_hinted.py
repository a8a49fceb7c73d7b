"""Hinted distillation with a teacher whose answers and numbers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from openclaw_rl.algo.hinted import Hinted, echoes
from openclaw_rl.types import (
    NO_SIGNAL,
    Answer,
    Ask,
    Example,
    FloatArray,
    IntArray,
    Lesson,
    SamplingParams,
    Source,
    Teaching,
    TurnRecord,
    Verdict,
    distribution_example,
)

#: Prompts: as they are, and with the wish.
ASKS = [Ask([1, n], [1, n, 9]) for n in (5, 6)]
WISH = "Please sound like my grandmother would from now on."


def answer(first: int, text: str = "rain is water", finished: bool = True, logprob: float = -1.0) -> Answer:
    ids = [first, 70]
    top = np.array([[i, 80, 81] for i in ids], np.int32)
    chances = np.log(np.array([[0.6, 0.2, 0.1]] * 2, np.float32))
    return Answer(ids, [logprob] * 2, top, chances, text, finished)


@dataclass
class ScriptedTeacher:
    """``untold`` and ``elsewhere``: what an answer's tokens are worth without the wish, and after another."""

    answers: Sequence[Answer]
    untold: Mapping[int, float] = field(default_factory=dict)
    elsewhere: Mapping[int, float] = field(default_factory=dict)
    asked: list[list[int]] = field(default_factory=list)
    broken: tuple[str, ...] = ()
    written: list[str] = field(default_factory=list)
    told: Sequence[Answer] | None = None
    """The answers to prompts that state the wish, if they are others."""

    numbers: list[int] = field(default_factory=list)
    """How many answers were asked for each time."""

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        self.asked.append(prompt_ids)
        self.numbers.append(number)
        return list(self.answers if self.told is None or prompt_ids[-1] != 9 else self.told)

    def encode(self, text: str, *, ends: bool = True) -> list[int]:
        """Every letter is a token."""
        self.written.append(text if ends else f"{text}…")
        return [ord(letter) for letter in text]

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int]) -> float:
        known = self.elsewhere if prompt_ids[-1] == 9 else self.untold
        return known.get(reply_ids[0], -2.0)

    def degenerate(self, text: str) -> bool:
        return text in self.broken

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        raise AssertionError("nothing is scored")


def lesson(
    score: int = -1,
    hints: tuple[str, ...] = (WISH,),
    wishes: tuple[str, ...] = (WISH,),
    asks: Sequence[Ask] = ASKS,
) -> Lesson:
    turn = TurnRecord(
        "t1", "s1", "ann", "chat", "main", [], None, {}, {}, [1, 5], [], SamplingParams(10), 0, "stop", 0.0
    )
    if not wishes:
        asks = [Ask(ask.prompt_ids, ask.prompt_ids) for ask in asks]
    return Lesson(
        turn,
        Verdict(score, 1.0, "votes", hints=hints),
        lambda hint: None,
        wishes=wishes,
        asks=lambda wish, number: list(asks[:number]),
    )


async def kept(teacher: ScriptedTeacher, algorithm: Hinted | None = None) -> list[int]:
    """First tokens of the answers that are learned from on the first request."""
    made = await (algorithm or Hinted(keep=1)).examples(lesson(), teacher)
    return [example.reply_ids[0] for example in made if example.prompt_ids == ASKS[0].prompt_ids]


async def test_the_teacher_is_told_and_the_student_is_not() -> None:
    teacher = ScriptedTeacher([answer(20)])
    made = await Hinted().examples(lesson(), teacher)
    assert teacher.asked == [ask.hinted_ids for ask in ASKS]
    assert [example.prompt_ids for example in made] == [ask.prompt_ids for ask in ASKS]
    assert {example.source for example in made} == {Source("hinted", ("t1",), "ann", -1, WISH)}


@pytest.mark.parametrize(
    ("wish", "numbers"),
    [
        (WISH, {12}),
        ("Please answer in one sentence.", {4, 2}),  # told first, then put into form
        ("Please answer with a numbered list.", {2}),
    ],
)
async def test_more_answers_are_sampled_where_no_form_can_be_made(wish: str, numbers: set[int]) -> None:
    teacher = ScriptedTeacher([answer(20)])
    await Hinted().examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert set(teacher.numbers) == numbers


@pytest.mark.parametrize(
    ("score", "hints", "wishes"),
    [(1, (), (WISH,)), (1, (WISH,), (WISH,)), (0, (WISH,), (WISH,)), (-1, (), ())],
)
async def test_praise_and_complaints_about_no_wish_teach_nothing(
    score: int, hints: tuple[str, ...], wishes: tuple[str, ...]
) -> None:
    teacher = ScriptedTeacher([answer(20)])
    assert await Hinted().examples(lesson(score, hints, wishes), teacher) == []
    assert teacher.asked == []


async def test_a_complaint_without_a_word_teaches_the_wishes_that_hold() -> None:
    teacher = ScriptedTeacher([answer(20)])
    made = await Hinted().examples(lesson(-1, ()), teacher)
    assert teacher.asked == [ask.hinted_ids for ask in ASKS]
    assert [example.source.hint for example in made] == [WISH, WISH]


async def test_the_best_answer_fits_and_shows_the_wish_most() -> None:
    """One shows the wish but fits anything, one fits but would nearly have come anyway, one does both."""
    teacher = ScriptedTeacher(
        [answer(20), answer(21), answer(22)],
        untold={20: -9.0, 21: -1.1, 22: -4.0},
        elsewhere={20: -1.3, 21: -9.0, 22: -4.0},
    )
    assert await kept(teacher) == [22]
    assert await kept(teacher, Hinted(keep=3)) == [22, 21]


async def test_what_names_the_thing_asked_about_is_about_it() -> None:
    """However likely it would be after another request; and the more it shows the wish, the better."""
    about = [replace(ask, text=text) for ask, text in zip(ASKS, ("What is rain?", "Why bark?"), strict=True)]
    likely_anywhere = {"elsewhere": {20: -1.0, 21: -1.0}}
    teacher = ScriptedTeacher(
        [answer(20), answer(21, "a fine topic")], {20: -2.0, 21: -9.0}, **likely_anywhere
    )
    made = await Hinted().examples(lesson(asks=about), teacher)
    assert [(made.prompt_ids, made.reply_ids[0]) for made in made] == [(ASKS[0].prompt_ids, 20)]


async def test_a_model_that_answers_next_to_nothing_when_told_teaches_nothing() -> None:
    """A quarter of the requests must find an answer, or the wish is beyond it."""
    texts = ("What is rain?", "Why do dogs bark?", "How do locks work?", "What is a comet?", "Explain trams.")
    about = [Ask([1, n], [1, n, 9], text) for n, text in enumerate(texts)]
    teacher = ScriptedTeacher([answer(20, "rain, as you wish")], {20: -9.0}, {20: -1.0})
    assert await Hinted().examples(lesson(asks=about), teacher) == []
    assert len(await Hinted().examples(lesson(asks=about[:4]), teacher)) == 1


async def test_what_says_the_wish_again_is_left_out() -> None:
    repeated = "Sure, I will sound like my grandmother would."
    assert echoes(repeated, WISH)
    assert not echoes("Rain is water that falls from clouds.", WISH)
    assert not echoes("Like my grandmother: rain.", WISH)
    teacher = ScriptedTeacher([answer(20, repeated), answer(21)], untold={20: -9.0}, elsewhere={20: -9.0})
    assert await kept(teacher) == [21]


async def test_what_fell_apart_is_left_out() -> None:
    teacher = ScriptedTeacher(
        [answer(20, "ha ha ha"), answer(21)], {20: -9.0}, {20: -9.0}, broken=("ha ha ha",)
    )
    assert await kept(teacher) == [21]
    assert await kept(ScriptedTeacher([answer(20, "ha ha ha")], broken=("ha ha ha",))) == []


async def test_what_would_answer_any_request_teaches_nothing() -> None:
    """Nor does what is said as likely by a model that was not told."""
    assert await kept(ScriptedTeacher([answer(20)], {20: -9.0}, {20: -1.1})) == []
    assert await kept(ScriptedTeacher([answer(20)], {20: -0.9}, {20: -9.0})) == []
    assert await kept(ScriptedTeacher([answer(20)], {20: -9.0}, {20: -9.0})) == [20]


async def test_unfinished_answers_are_left_out_unless_nearly_all_are() -> None:
    """A wish for long replies makes all of them too long to finish."""
    cut, whole = answer(20, finished=False), answer(21)
    best = {"untold": {20: -9.0}, "elsewhere": {20: -9.0}}
    assert await kept(ScriptedTeacher([cut, cut, cut, whole], **best)) == [21]
    assert await kept(ScriptedTeacher([cut, cut, cut, cut, whole], **best)) == [20]


async def test_without_a_wish_left_the_base_itself_is_what_is_aimed_at() -> None:
    """The last wish was taken back: the requests are asked as they are."""
    teacher = ScriptedTeacher([answer(20)])
    made = await Hinted().examples(lesson(wishes=()), teacher)
    assert teacher.asked == [ask.prompt_ids for ask in ASKS]
    assert {example.source.hint for example in made} == {""}


@pytest.mark.parametrize("own_share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("first", [20, 21], ids=["among the likeliest", "not among them"])
def test_what_is_aimed_at_adds_up_to_one(own_share: float, first: int) -> None:
    """Whole distributions: what no column names goes to the rest."""
    ids = [first, 70]
    top = np.array([[20, 80, 81], [70, 80, 81]], np.int32)
    shares = np.array([[0.6, 0.2, 0.1], [0.5, 0.3, 0.1]], np.float32)
    own = [0.6 if first == 20 else 0.05, 0.5]
    given = Answer(ids, list(np.log(own)), top, np.log(shares), "rain is water", True)
    made = distribution_example(ASKS[0], given, Source("hinted", ("t1",)), own_share)
    assert np.isfinite(made.signal_NK).all()
    assert made.ids_NK[:, 0].tolist() == ids
    aimed = np.where(made.signal_NK == NO_SIGNAL, 0.0, np.exp(made.signal_NK))
    named = aimed.sum(axis=1)
    rest = np.array([0.1 if first == 20 else 0.05, 0.1]) * (1 - own_share)
    if first == 21 and not own_share:
        rest[0] += 0.05  # the given token has no column of its own then
    assert named + rest == pytest.approx(1.0)
    on_own = (aimed * (made.ids_NK == made.ids_NK[:, :1])).sum(axis=1)
    if own_share:
        assert on_own == pytest.approx(own_share + (1 - own_share) * np.array(own))


async def test_the_share_of_the_kept_token_is_a_setting() -> None:
    [plain, *_] = await Hinted(own_share=0.0).examples(lesson(), ScriptedTeacher([answer(20)]))
    [mixed, *_] = await Hinted(own_share=0.5).examples(lesson(), ScriptedTeacher([answer(20)]))
    assert np.exp(plain.signal_NK[0, 1]) == pytest.approx(0.6)
    assert np.exp(mixed.signal_NK[0, 1]) == pytest.approx(0.8)


# --- wishes about nothing but the form -------------------------------------------------------

SAID = "Rain is water. It falls from clouds. It"


def spelled(text: str, finished: bool = True) -> Answer:
    """An answer whose every letter is a token."""
    ids = [ord(letter) for letter in text]
    top = np.array([[i, 80, 81] for i in ids], np.int32)
    chances = np.log(np.array([[0.6, 0.2, 0.1]] * len(ids), np.float32))
    return Answer(ids, [-1.0] * len(ids), top, chances, text, finished)


def aimed_at(example: Example) -> FloatArray:
    """The chance that an example gives to its own token, at each position."""
    own = example.ids_NK == np.array([example.reply_ids]).T
    return np.where(own & (example.signal_NK != NO_SIGNAL), np.exp(example.signal_NK), 0).sum(axis=1)


async def test_a_form_is_given_to_answers_of_a_model_that_was_not_told() -> None:
    teacher = ScriptedTeacher([spelled("Rain falls.")])
    wish = "Begin every answer with Well now."
    made = await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert teacher.asked == [ask.prompt_ids for ask in ASKS[:3]]
    assert set(teacher.written) == {"Well now, Rain falls."}
    assert {bytes(example.reply_ids).decode() for example in made} == {"Well now, Rain falls."}


async def test_an_answer_that_has_the_form_by_itself_is_better_than_a_cut_one() -> None:
    """Told to be short, the model gets to the point; the first sentence of a long answer need not."""
    teacher = ScriptedTeacher([spelled(SAID)], told=[spelled(SAID), spelled("Rain is drops.")])
    teacher.untold = {ord("R"): -4.0}
    wish = "Please answer in one sentence."
    made = await Hinted(requests=3, own_share=0.5).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert teacher.asked == [ask.hinted_ids for ask in ASKS]
    assert {bytes(example.reply_ids).decode() for example in made} == {"Rain is drops."}
    assert aimed_at(made[0]) == pytest.approx(0.8), "learned whole, as the told model's answers are"


async def test_without_one_a_plain_answer_is_cut() -> None:
    for told in ([spelled(SAID)], [spelled("Rain is drops.", finished=False)], []):
        teacher = ScriptedTeacher([spelled(SAID, finished=False)], told=told)
        wish = "Please answer in one sentence."
        made = await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
        assert {bytes(example.reply_ids).decode() for example in made} == {"Rain is water."}


async def test_only_right_answers_to_a_question_are_learned_from() -> None:
    question = replace(ASKS[0], text="Name the colour of tomatoes.", right=("red", "crimson"))
    said = [
        answer(20, "Tomatoes are blue, dear."),
        answer(21, "Tomatoes are scarred."),
        answer(22, "Red, dear."),
    ]
    teacher = ScriptedTeacher(said, untold={20: -9.0, 21: -9.0, 22: -4.0}, elsewhere={22: -0.5})
    made = await Hinted(keep=3).examples(lesson(asks=[question, ASKS[1]]), teacher)
    assert [each.reply_ids[0] for each in made if each.prompt_ids == question.prompt_ids] == [22]


async def test_questions_do_not_count_towards_what_the_told_model_manages() -> None:
    """It may know no answer to any of them, or to nothing else."""
    asks = [replace(ASKS[0], right=("red",)), replace(ASKS[0], right=("green",)), ASKS[1]]
    teacher = ScriptedTeacher([answer(20, "a red one")], {20: -9.0}, {20: -1.0})
    assert await Hinted().examples(lesson(asks=asks), teacher) == []


async def test_words_that_the_form_brought_in_are_aimed_at_alone() -> None:
    teacher = ScriptedTeacher([spelled("Rain is water.")])
    wish = "Please end every answer with the words Yo ho."
    made = await Hinted(requests=3, own_share=0.5).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    text = "Rain is water. Yo ho."
    chances = aimed_at(made[0])
    assert bytes(made[0].reply_ids).decode() == text
    assert chances[0] == pytest.approx(0.6)  # as the model held it, and nothing more
    assert chances[text.index("Y")] == pytest.approx(1.0)
    assert made[0].num_free == len(text)  # all the rest says that the ending does not come before


async def test_before_a_cut_the_answer_is_held_here_and_there() -> None:
    teacher = ScriptedTeacher([spelled(SAID, finished=False)])
    wish = "Please answer in one sentence."
    made = await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    text = "Rain is water."
    held = (made[0].signal_NK != NO_SIGNAL).any(axis=1)
    assert held.nonzero()[0].tolist() == [0, 4, 8, 12, len(text) - 1]
    assert made[0].num_free == 5


async def test_around_what_was_added_an_answer_is_as_likely_as_it_was_without() -> None:
    """Asked again behind a name, the model would expect the name again."""
    given = spelled("Rain is water.")
    given.top_logprobs_NK[5:] = np.log(0.05)  # from here on it held other letters for likely
    wish = "Please call me Ann."
    made = await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), ScriptedTeacher([given]))
    text = "Rain is water, Ann."
    aimed = aimed_at(made[0])
    assert bytes(made[0].reply_ids).decode() == text
    assert aimed[:5] == pytest.approx(0.6)
    assert aimed[5 : text.index(",")] == pytest.approx(0.05)
    assert aimed[text.index(",") :] == pytest.approx(1.0)  # the name, and what comes right behind it


async def test_an_answer_in_form_names_what_was_asked_about() -> None:
    about = [Ask([1, n], [1, n, 9], text) for n, text in enumerate(("What is rain?", "What are bees?"))]
    teacher = ScriptedTeacher([spelled("Who knows? Nobody does.")], elsewhere={}, untold={})
    wish = "Please answer in one sentence."
    assert await Hinted().examples(lesson(hints=(wish,), wishes=(wish,), asks=about), teacher) == []


async def test_an_answer_that_was_cut_off_does_not_teach_to_stop_there() -> None:
    teacher = ScriptedTeacher([spelled(SAID, finished=False)])
    wish = "Begin every answer with Well now."
    await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert set(teacher.written) == {f"Well now, {SAID}…"}


@pytest.mark.parametrize(
    ("wish", "whether"),
    [(WISH, True), ("Please answer in French.", True), ("Begin every answer with Well now.", False)],
)
async def test_steps_use_more_of_the_answers_that_no_form_could_make(wish: str, whether: bool) -> None:
    teacher = ScriptedTeacher([spelled("Il pleut et il fait froid, et le vent est fort.")])
    asked = lesson(hints=(wish,), wishes=(wish,))
    made = await Hinted().examples(asked, teacher)
    assert [example.is_told for example in made] == [whether] * len(ASKS)


async def test_a_form_that_cannot_be_made_is_looked_for_in_what_the_told_model_says() -> None:
    wish = "Please answer in exactly four words."
    teacher = ScriptedTeacher([answer(20, "Rain is just water"), answer(21, "Rain is water")])
    made = await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert [example.reply_ids[0] for example in made] == [20, 20]
    none = ScriptedTeacher([answer(21, "Rain is water")])
    assert await Hinted(requests=3).examples(lesson(hints=(wish,), wishes=(wish,)), none) == []


async def test_where_only_some_answers_can_have_the_form_these_are_learned_whole() -> None:
    teacher = ScriptedTeacher([spelled("Rain is water. It falls.")])
    wish = "At most four words, please."
    made = await Hinted(requests=3, own_share=0.5).examples(lesson(hints=(wish,), wishes=(wish,)), teacher)
    assert bytes(made[0].reply_ids).decode() == "Rain is water."
    assert aimed_at(made[0])[:2] == pytest.approx(0.5 + 0.5 * 0.6)
