"""From a judged turn to per-token signal, with teachers whose numbers are known."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from openclaw_rl.algo import ALGORITHMS, create_algorithm
from openclaw_rl.algo.base import importance, standardised
from openclaw_rl.algo.binary import Binary
from openclaw_rl.algo.hints import overlap
from openclaw_rl.algo.hybrid import Hybrid, HybridSum
from openclaw_rl.algo.opd import Opd, OpdTopK
from openclaw_rl.config import LearnConfig
from openclaw_rl.train.losses import loss_of
from openclaw_rl.types import (
    NOT_RECORDED,
    Algorithm,
    Example,
    IntArray,
    Lesson,
    SamplingParams,
    Teaching,
    Token,
    TurnRecord,
    Verdict,
)

#: Three tokens; their four likeliest alternatives, best first.
TOP = [
    ((11, 12, 13, 14, 15, 16, 17, 18), (0.5, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01)),
    ((21, 22, 23, 24, 25, 26, 27, 28), (0.7, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005)),
    ((31, 32, 33, 34, 35, 36, 37, 38), (0.4, 0.3, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01)),
]


def make_turn(user: str = "ann", forced: int | None = None, temperature: float = 1.0) -> TurnRecord:
    tokens = []
    for index, (ids, shares) in enumerate(TOP):
        tokens.append(
            Token(
                ids[0], math.log(shares[0]), math.log(min(1.0, shares[0] * 1.5)), ids,
                tuple(math.log(share) for share in shares), 0, forced=index == forced,
            )
        )  # fmt: skip
    return TurnRecord(
        "t1", "s1", user, "chat", "main", [], None, {}, {"role": "assistant", "content": "x"},
        [1, 2, 3], tokens, SamplingParams(10, temperature), 0, "stop", 0.0,
    )  # fmt: skip


def lesson(score: int, *hints: str, confidence: float = 1.0, turn: TurnRecord | None = None) -> Lesson:
    verdict = Verdict(score, confidence, "votes", hints=hints)
    return Lesson(turn or make_turn(), verdict, lambda hint: [1, 2, len(hint), 3])


class Teacher:
    """Holds every candidate e times likelier or less likely, by hint; agrees on the first ``agrees``."""

    def __init__(self, gaps: dict[int, list[float]], agrees: dict[int, int] | None = None) -> None:
        self.gaps, self.agrees, self.asked = gaps, agrees or {}, []  # type: ignore[var-annotated]

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        hint_length = prompt_ids[2]
        self.asked.append(hint_length)
        old = {i: math.log(p) for ids, shares in TOP for i, p in zip(ids, shares, strict=True)}
        gaps = self.gaps[hint_length]
        logprobs = [[old[i] + gaps[k % len(gaps)] for k, i in enumerate(row)] for row in ids_NK.tolist()]
        known = self.agrees.get(hint_length, ids_NK.shape[1])
        top = [[i if k < known else -1 for k, i in enumerate(row)] for row in ids_NK.tolist()]
        return Teaching(
            np.array(logprobs, np.float32), np.array(top, np.int32), np.array(logprobs, np.float32)
        )


def examples(algorithm: Algorithm, given: Lesson, teacher: Teacher | None = None) -> list[Example]:
    return asyncio.run(algorithm.examples(given, teacher or Teacher({})))


def made(algorithm: Algorithm, given: Lesson, teacher: Teacher | None = None) -> Example:
    [result] = examples(algorithm, given, teacher)
    return result


# --- binary ----------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [1, -1])
def test_binary_puts_the_verdict_on_every_sampled_token(score: int) -> None:
    got = made(
        Binary(importance_cap=1.0, rl_weight=2.0),
        lesson(score, confidence=0.5, turn=make_turn(temperature=0.0)),
    )
    assert got.ids_NK.tolist() == [[11], [21], [31]]
    np.testing.assert_allclose(got.signal_NK, [[score]] * 3)
    np.testing.assert_allclose(got.old_NK[:, 0], np.log([0.5, 0.7, 0.4]), rtol=1e-6)


def test_a_neutral_verdict_teaches_binary_nothing() -> None:
    assert not examples(Binary(), lesson(0))


@pytest.mark.parametrize(
    ("score", "peers", "advantage"),
    [
        (1, (-1,), 1.0),
        (-1, (1,), -1.0),
        (1, (-1, -1, -1), 3**0.5),
        (0, (1,), -1.0),
        (1, (1, 1), 0.0),
        (-1, (), 0.0),
    ],
)
def test_answers_to_one_request_are_measured_against_each_other(
    score: int, peers: tuple[int, ...], advantage: float
) -> None:
    assert standardised(score, (score, *peers)) == pytest.approx(advantage)
    algorithm = Binary(importance_cap=1.0)
    made = examples(algorithm, replace(lesson(score, turn=make_turn(temperature=0.0)), peers=peers))
    if advantage:
        assert made[0].source.compared
        batch = algorithm.batch([*made, *made], {})
        assert [example.signal_NK.max() for example in batch.examples] == pytest.approx([advantage] * 2)
    else:
        assert not any(example.source.compared for example in made), "as if there were none"


def test_forced_tokens_carry_no_signal() -> None:
    teacher = Teacher({4: [0.5, -0.5]})
    for name in ("binary", "opd", "opd-topk", "hybrid-sum"):
        given = lesson(-1, "hint", turn=make_turn(forced=1))
        got = made(create_algorithm(LearnConfig(algo=name)), given, teacher)
        assert np.abs(got.signal_NK[1]).sum() == 0, name
        assert np.abs(got.signal_NK[0]).sum() > 0, name


def test_importance_is_raw_over_sampled_from_and_capped() -> None:
    turn = make_turn()
    # The second was sampled from with certainty where the policy itself holds 0.7.
    np.testing.assert_allclose(importance(turn, 2.0)[:, 0], [1 / 1.5, 0.7, 1 / 1.5], rtol=1e-5)
    rare = make_turn()
    rare.tokens[0] = Token(11, math.log(0.5), math.log(0.01), (), (), 0)
    assert importance(rare, 2.0)[0, 0] == pytest.approx(2.0)
    np.testing.assert_array_equal(importance(make_turn(temperature=0.0), 2.0), np.ones((3, 1)))


def items(scores: list[int], user: str = "ann") -> list[Example]:
    algorithm = Binary(importance_cap=1.0)
    turn = make_turn(user, temperature=0.0)
    return [made(algorithm, lesson(score, turn=turn)) for score in scores]


def test_a_user_who_only_complains_is_centred_away() -> None:
    state: dict[str, object] = {}
    algorithm = Binary(importance_cap=1.0)
    first = algorithm.batch(items([-1] * 8), state)
    pushes = [float(item.signal_NK[0, 0]) for item in first.examples]
    assert pushes[0] == pytest.approx(-1)
    assert pushes[1:] == pytest.approx([0] * 7)
    # The state goes on where it stopped, and knows users apart.
    second = algorithm.batch([*items([1]), *items([1], "bob")], state)
    assert [float(item.signal_NK[0, 0]) for item in second.examples] == pytest.approx([2, 1])


def test_the_published_binary_is_not_centred() -> None:
    batch = Binary(importance_cap=1.0, reward_baseline=False).batch(items([-1] * 3), {})
    assert [float(item.signal_NK[0, 0]) for item in batch.examples] == [-1] * 3


# --- distillation ----------------------------------------------------------------------------


def test_opd_is_the_clipped_gap_on_sampled_tokens() -> None:
    teacher = Teacher({4: [3.0]})
    got = made(
        Opd(gap_clip=1.0, importance_cap=1.0), lesson(-1, "hint", turn=make_turn(temperature=0.0)), teacher
    )
    np.testing.assert_allclose(got.signal_NK, [[1.0]] * 3)
    assert got.source.hint == "hint"


def test_topk_weighs_gaps_by_the_students_own_shares() -> None:
    got = made(OpdTopK(), lesson(-1, "hint"), Teacher({4: [0.5, -2.0]}))
    assert got.ids_NK[0].tolist() == [11, 11, 12, 13, 14]
    shares = np.array([0.5, 0.2, 0.1, 0.05]) / 0.85
    expected = shares * np.array([0.5, -1.0, 0.5, -1.0])
    np.testing.assert_allclose(got.signal_NK[0], [0, *expected], rtol=1e-5)


def test_centred_pushes_add_up_to_zero_at_every_position() -> None:
    teacher = Teacher({4: [0.5, -2.0, 0.1]})
    got = made(OpdTopK(centred=True), lesson(-1, "hint"), teacher)
    np.testing.assert_allclose(got.signal_NK.sum(axis=1), 0, atol=1e-6)
    plain = made(OpdTopK(), lesson(-1, "hint"), teacher)
    shares = np.array([0.5, 0.2, 0.1, 0.05]) / 0.85
    np.testing.assert_allclose(
        got.signal_NK[0, 1:], plain.signal_NK[0, 1:] - shares * plain.signal_NK[0].sum(), atol=1e-6
    )


def test_without_a_hint_or_a_prompt_to_put_it_in_there_is_nothing_to_distil() -> None:
    assert not examples(OpdTopK(), lesson(-1))
    lost = Lesson(make_turn(), Verdict(-1, 1.0, "votes", hints=("hint",)), lambda hint: None)
    assert not examples(OpdTopK(), lost)


def test_overlap_counts_shared_tokens_per_position() -> None:
    student = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    teacher = np.array([[3, 9, 1], [7, 8, 9]], np.int32)
    assert overlap(student, teacher).tolist() == [2, 0]


def test_the_hint_the_student_can_follow_is_chosen() -> None:
    teacher = Teacher({1: [0.9], 2: [0.1]}, agrees={1: 1, 2: 3})
    got = made(OpdTopK(), lesson(-1, "a", "bb"), teacher)
    assert got.source.hint == "bb"
    assert sorted(teacher.asked) == [1, 2]
    assert got.signal_NK[0, 1] == pytest.approx(0.5 / 0.85 * 0.1, rel=1e-4)


def test_a_retold_reply_leaves_out_what_the_hinted_teacher_would_hardly_say() -> None:
    """The second token is four nats below the teacher's own choice: an apology, say."""

    class Unforgiving(Teacher):
        async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
            assert prompt_ids == [1, 2, 5, 3]  # what was asked first, with the complaint's hint
            said = np.array([[-0.5], [-4.5], [-2.0]], np.float32)
            return Teaching(said, np.full((3, 1), 99, np.int32), np.full((3, 1), -0.5, np.float32))

    first = lesson(-1, "short", turn=replace(make_turn(), id="t0", prompt_ids=[7, 8]))
    accepted = replace(lesson(1, confidence=0.8, turn=make_turn(forced=2)), corrected=first)
    got = made(Hybrid(), accepted, Unforgiving({}))
    np.testing.assert_allclose(got.signal_NK, [[0.8], [0.0], [0.0]], rtol=1e-6)  # the third was forced
    assert got.prompt_ids == [7, 8]
    assert (got.old_NK > 0).all()
    assert made(Hybrid(retell=False), accepted, Teacher({})).source.kind == "own"


def test_without_a_hint_an_accepted_reply_answers_its_own_question() -> None:
    accepted = replace(lesson(1), corrected=lesson(-1))
    assert made(Hybrid(), accepted, Teacher({})).source.kind == "own"


class Surprising(Teacher):
    """At the first position it would say 99, which the student never thought of, or 13, its third choice."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        got = await super().score(prompt_ids, reply_ids, ids_NK)
        top, logprobs = got.top_ids_NK.copy(), got.top_logprobs_NK.copy()
        top[0, :2], logprobs[0, :2] = [99, TOP[0][0][2]], np.log([0.6, 0.3])
        return Teaching(got.logprobs_NK, top, logprobs)


def test_the_teachers_own_tokens_are_taught_where_the_student_had_none_of_them() -> None:
    teacher = Surprising({4: [0.0]})
    plain = made(OpdTopK(top_k=2), lesson(-1, "hint"), teacher)
    got = made(OpdTopK(top_k=2, teacher_k=2), lesson(-1, "hint"), teacher)
    np.testing.assert_allclose(got.signal_NK[:, :3], plain.signal_NK)  # the student's own are as they were
    assert got.ids_NK[0, 3:].tolist() == [99, TOP[0][0][2]]
    third = TOP[0][1][2]
    np.testing.assert_allclose(got.signal_NK[0, 3:], [0.6, 0.3 * min(1.0, math.log(0.3 / third))], rtol=1e-5)
    np.testing.assert_allclose(got.old_NK[0, 3:], [NOT_RECORDED, math.log(third)], rtol=1e-6)
    assert np.abs(got.signal_NK[1:, 3:]).sum() == 0  # elsewhere it wants what the student considered


def test_centred_the_teachers_tokens_take_their_probability_from_the_students() -> None:
    got = made(OpdTopK(top_k=2, teacher_k=2, centred=True), lesson(-1, "hint"), Surprising({4: [0.0]}))
    assert got.signal_NK[0].sum() == pytest.approx(0, abs=1e-6)
    assert got.signal_NK[0, 3] > 0 > got.signal_NK[0, 1]


def test_token_optimal_takes_the_better_hint_at_each_position() -> None:
    class Mixed(Teacher):
        async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
            got = await super().score(prompt_ids, reply_ids, ids_NK)
            own = got.top_ids_NK.copy()
            own[0 if prompt_ids[2] == 1 else 2] = -1
            return Teaching(got.logprobs_NK, own, got.top_logprobs_NK)

    got = made(OpdTopK(hint_choice="token"), lesson(-1, "a", "bb"), Mixed({1: [0.9], 2: [0.1]}))
    gaps = got.signal_NK[:, 1] / (np.array([0.5 / 0.85, 0.7 / 0.89, 0.4 / 0.85]))
    np.testing.assert_allclose(gaps, [0.1, 0.9, 0.9], rtol=1e-4)


def test_distill_asks_for_the_teachers_own_log_probs() -> None:
    got = made(create_algorithm(LearnConfig(algo="distill")), lesson(-1, "hint"), Teacher({4: [0.25]}))
    assert got.ids_NK.shape == (3, 9)
    np.testing.assert_allclose(got.signal_NK[0, 1], math.log(0.5) + 0.25, rtol=1e-5)


# --- hybrid ----------------------------------------------------------------------------------


def loss_and_gradient(algorithm: Algorithm, given: Example) -> tuple[float, torch.Tensor]:
    batch = algorithm.batch([given], {})
    logits = torch.log(
        torch.tensor([[0.3, 0.2, 0.1, 0.1, 0.1, 0.2]] * 3, dtype=torch.float64)
    ).requires_grad_()
    everything = torch.log_softmax(logits, dim=1)
    # Candidates are mapped into a small vocabulary: by their last digit.
    new = everything.gather(1, torch.from_numpy(given.ids_NK % 6).long())
    old = new.detach() - 0.01
    loss = loss_of(batch)(new, old, torch.from_numpy(given.signal_NK).double()).sum()
    loss.backward()
    assert logits.grad is not None
    return float(loss.detach()), logits.grad


def test_the_published_hybrid_is_the_sum_of_its_parts() -> None:
    given, teacher = lesson(-1, "hint"), Teacher({4: [0.5, -0.25, 0.1]})
    parts = [Binary(reward_baseline=False), OpdTopK()]
    whole = loss_and_gradient(HybridSum(), made(HybridSum(), given, teacher))
    separate = [loss_and_gradient(part, made(part, given, teacher)) for part in parts]
    assert whole[0] == pytest.approx(sum(loss for loss, _ in separate))
    torch.testing.assert_close(whole[1], separate[0][1] + separate[1][1])


@pytest.mark.parametrize("weights", [{"rl_weight": 2.0}, {"opd_weight": 2.0}])
def test_the_weight_of_each_part_changes_the_gradient(weights: dict[str, float]) -> None:
    given, teacher = lesson(-1, "hint"), Teacher({4: [0.5, -0.25, 0.1]})
    one = create_algorithm(LearnConfig(algo="hybrid-sum"))
    two = create_algorithm(LearnConfig(algo="hybrid-sum", algo_options=weights))
    before, after = (loss_and_gradient(a, made(a, given, teacher))[1] for a in (one, two))
    part = Binary(reward_baseline=False) if "rl_weight" in weights else OpdTopK()
    torch.testing.assert_close(after - before, loss_and_gradient(part, made(part, given, teacher))[1])


def test_a_verdict_without_a_hint_and_a_hint_without_a_verdict_count_once() -> None:
    teacher = Teacher({4: [0.5]})
    assert made(HybridSum(), lesson(-1), teacher).ids_NK.shape[1] == 1
    assert made(HybridSum(), lesson(0, "hint"), teacher).ids_NK.shape[1] == 5
    assert not examples(HybridSum(), lesson(0), teacher)


def test_hybrid_never_pushes_a_reply_down_as_a_whole() -> None:
    assert not examples(Hybrid(), lesson(-1))
    complaint = made(Hybrid(), lesson(-1, "hint"), Teacher({4: [-0.5, 0.5]}))
    np.testing.assert_allclose(complaint.signal_NK.sum(axis=1), 0, atol=1e-6)
    accepted = made(Hybrid(), lesson(1, turn=make_turn(temperature=0.0)))
    np.testing.assert_allclose(accepted.signal_NK, [[1.0]] * 3, rtol=1e-6)
    assert accepted.strength < complaint.strength


def test_the_step_shrinks_with_the_share_of_complaints() -> None:
    complaint = made(Hybrid(), lesson(-1, "hint"), Teacher({4: [0.5, -0.5]}))
    accepted = made(Hybrid(), lesson(1))
    mixed = [complaint] + [accepted] * 3
    assert Hybrid().batch(mixed, {}).scale == pytest.approx(0.25 * 0.5**0.5)
    assert Hybrid().batch(mixed * 2, {}).scale == Hybrid().batch(mixed * 4, {}).scale == 0.25
    assert Hybrid().batch(mixed[1:], {}).scale == pytest.approx(0.05 * (3 / 8) ** 0.5)


# --- one's own -------------------------------------------------------------------------------


class Mine:
    async def examples(self, given: Lesson, scorer: object) -> list[Example]:
        return []


def my_loss(new: torch.Tensor, old: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
    return new.sum(dim=1)


def test_algorithms_and_losses_of_ones_own_plug_in() -> None:
    assert type(create_algorithm(LearnConfig(algo=f"{__name__}:Mine"))).__name__ == "Mine"
    batch = create_algorithm(LearnConfig(algo="binary", loss=f"{__name__}:my_loss")).batch(items([1]), {})
    assert batch.loss is my_loss


@pytest.mark.parametrize("name", ["nothing", "no.such.module:Class", f"{__name__}:Missing"])
def test_an_unknown_algorithm_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="algorithm"):
        create_algorithm(LearnConfig(algo=name))


def test_every_algorithm_of_the_table_can_be_made() -> None:
    for name in ALGORITHMS:
        assert hasattr(create_algorithm(LearnConfig(algo=name)), "examples")
