"""The model's states as evidence: used where the engine shows them, done without where it does not."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from openclaw_rl.judge import LabelJudge
from openclaw_rl.judge.calibration import CLASSES, fit
from openclaw_rl.judge.exchange import CaseTexts
from openclaw_rl.judge.fitted import read_fitted
from openclaw_rl.judge.shots import case_of, read_cases, state_prompts
from openclaw_rl.types import Capabilities, Message, ScoreRequest, Scores


class StatesEngine:
    """Scores anything the same; shows states of a given width, or none."""

    context_length = 2048

    def __init__(self, width: int | None) -> None:
        self.capabilities = Capabilities(hidden_states=width is not None)
        self._width, self.layers = width, set[int | None]()

    async def score(self, request: ScoreRequest) -> Scores:
        self.layers.add(request.hidden_layer)
        count = len(request.token_ids) - request.start
        ids, values = list(range(request.top_k)), [-1.0 - rank for rank in range(request.top_k)]
        is_shown = self._width is not None and request.hidden_layer is not None
        hidden = [0.5] * self._width if is_shown else None  # type: ignore[operator]
        return Scores([-1.0] * count, [ids] * count, [values] * count, hidden)


class Renderer:
    def render(self, messages: list[Message]) -> list[int]:
        return [1, 2, 3]


def judge(engine: StatesEngine) -> LabelJudge:
    return LabelJudge(engine, lambda text: [len(word) for word in text.split()], Renderer())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["user", "tool"])
@pytest.mark.parametrize(("width", "says_so"), [(576, False), (64, True), (None, True)])
async def test_without_the_fitted_states_the_judge_falls_back_and_says_so_once(
    kind: str, width: int | None, says_so: bool, caplog: pytest.LogCaptureFixture
) -> None:
    row = next(row for row in read_cases("train") if row["next_state"][-1]["role"] == kind)
    engine = StatesEngine(width)
    tested = judge(engine)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            votes = await tested.probabilities(case_of(row))
    assert len(votes) == 3
    assert all(sum(vote) == pytest.approx(1) for vote in votes)
    assert [record.name for record in caplog.records] == ["openclaw_rl.judge.label"] * says_so
    assert (engine.layers == {None}) == (width is None)


def test_both_files_hold_three_votes_for_either_kind() -> None:
    for kind in ("user", "tool"):
        plain, full = read_fitted().plain[kind], read_fitted().full[kind]
        assert len(plain) == len(full) == 3
        for less, more in zip(plain, full, strict=True):
            assert (len(more.mean_F) - len(less.mean_F)) % 576 == 0 < len(more.mean_F) - len(less.mean_F)


def test_prompts_for_states_show_the_reply_and_guard_it() -> None:
    row = {**read_cases("train")[0], "reply": "The {next} reply.<|im_end|>"}
    texts = [text for _, text in state_prompts("user", 1, CaseTexts(case_of(row)))]
    assert len(texts) == 2
    assert all("The (next) reply." in text and "im_end" not in text for text in texts)


def test_a_large_group_does_not_drown_a_small_one() -> None:
    random = np.random.default_rng(0)
    labels = [CLASSES[index % 3] for index in range(60)]
    signal = np.array([[label == 1, label == -1] for label in labels], dtype=float)
    noise = random.normal(size=(60, 400))
    new = np.hstack([signal, random.normal(size=(60, 400))])
    fitted = fit(np.hstack([signal, noise]).tolist(), labels, 0.5, [2, 400])
    guesses = [np.argmax(fitted.probabilities(row.tolist())) for row in new]
    assert np.mean([CLASSES[guess] == label for guess, label in zip(guesses, labels, strict=True)]) >= 0.95


def test_groups_of_one_are_no_groups() -> None:
    rows = np.random.default_rng(1).normal(size=(30, 4)).tolist()
    labels = [CLASSES[index % 3] for index in range(30)]
    assert np.allclose(fit(rows, labels, 1.0).weights_FC, fit(rows, labels, 1.0, [1] * 4).weights_FC)
