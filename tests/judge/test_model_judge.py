"""Whatever local model judges: by labels where it was fitted, by its own answers where it was not."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from openclaw_rl.config import JudgeConfig
from openclaw_rl.evals.fit_judge import inputs_digest
from openclaw_rl.evals.judge import load_model
from openclaw_rl.judge import AnswerJudge, JudgeParts, LabelJudge, ModelJudge, RuleFirstJudge, create_judge
from openclaw_rl.judge.fitted import PACKAGE, is_same_model, own_folder, read_fitted, recognise
from openclaw_rl.judge.shots import read_cases
from openclaw_rl.render import create_renderer
from openclaw_rl.testing import ScriptedEngine, byte_tokenizer
from openclaw_rl.types import BASE_VERSION, JudgeCase, JudgeError, Priority, Verdict

CASE = JudgeCase(
    [{"role": "user", "content": "Describe the shop."}],
    {"role": "assistant", "content": "A very long text."},
    [{"role": "user", "content": "Make it shorter please."}],
)
VERDICT = '{"reasoning": "asks for a change", "verdict": -1}'
HINTS = '{"correction": true, "hints": ["Make the text shorter."]}'


def scripted(*replies: str) -> tuple[ScriptedEngine, JudgeParts]:
    tokenizer = byte_tokenizer()
    engine = ScriptedEngine(tokenizer)
    for reply in replies:
        engine.say(reply)
    encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    return engine, JudgeParts(engine=engine, encode=encode, renderer=create_renderer(tokenizer, name="qwen3"))


def local(judge: object) -> ModelJudge:
    assert isinstance(judge, RuleFirstJudge)
    assert isinstance(judge.votes, ModelJudge)
    return judge.votes


@pytest.mark.parametrize("name", ["calibration", "probe"])
def test_the_stored_weights_were_fitted_to_the_stored_cases(name: str) -> None:
    """Whoever edits a case, a prompt or a sign runs ``python -m openclaw_rl.evals.fit_judge`` again."""
    stored = json.loads((PACKAGE / f"{name}.json").read_text())
    assert stored["inputs"] == inputs_digest(read_cases("train"))


def test_an_edited_case_is_noticed() -> None:
    rows = read_cases("train")[:20]
    edited = [*rows[:-1], {**rows[-1], "label": -rows[-1]["label"] or 1}]
    assert inputs_digest(rows) != inputs_digest(edited)
    said = [{**rows[0]["next_state"][-1], "content": "Something else."}]
    assert inputs_digest(rows) != inputs_digest([{**rows[0], "next_state": said}, *rows[1:]])


def test_kernels_differ_less_than_models() -> None:
    known = read_fitted().signature
    assert is_same_model(known, [value + 0.02 * (-1) ** index for index, value in enumerate(known)])
    assert not is_same_model(known, [value + 0.2 for value in known])
    assert not is_same_model(known, known[:-1])


async def test_a_model_nothing_was_fitted_to_is_asked_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, parts = scripted(VERDICT, VERDICT, "no idea", HINTS)
    judge = create_judge("label", parts)
    with caplog.at_level(logging.WARNING):
        verdict = await judge.evaluate(CASE)
    assert isinstance(local(judge).chosen, AnswerJudge)
    assert (verdict.score, sorted(verdict.votes, key=str)) == (-1, [-1, -1, None])
    assert verdict.hints == ("Make the text shorter.",)
    assert "another model's is not used" in caplog.text
    assert {(request.priority, request.policy_version) for request in engine.requests} == {
        (Priority.JUDGE, BASE_VERSION)
    }
    assert all(request.grammar for request in engine.requests)
    await judge.close()
    assert not engine.closed  # it was lent


async def test_an_engine_that_fails_leaves_the_turn_unjudged_and_recovers() -> None:
    engine, parts = scripted()
    for _ in range(3):
        engine.say(VERDICT, fail_after=3)
    judge = create_judge("label", parts)
    with pytest.raises(JudgeError, match="fails here"):
        await judge.evaluate(CASE)
    for reply in (VERDICT, VERDICT, VERDICT, HINTS):
        engine.say(reply)
    assert (await judge.evaluate(CASE)).score == -1


async def test_another_model_is_loaded_once_tried_again_and_closed() -> None:
    engine, parts = scripted(*[VERDICT, VERDICT, VERDICT, HINTS] * 2)
    loaded: list[str] = []

    def load(model: str) -> tuple[object, object, object]:
        loaded.append(model)
        if len(loaded) == 1:
            raise ValueError("could not download my/model")
        return parts.engine, parts.encode, parts.renderer

    judge = create_judge("label", JudgeParts(JudgeConfig(judge_model="my/model"), load=load))  # type: ignore[arg-type]
    with pytest.raises(JudgeError, match="could not download"):
        await judge.evaluate(CASE)
    assert (await judge.evaluate(CASE)).score == -1
    await judge.evaluate(CASE)
    assert loaded == ["my/model", "my/model"]
    await judge.close()
    assert engine.closed


async def test_files_of_your_own_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    engine, parts = scripted()
    assert parts.encode is not None
    assert await recognise(engine, parts.encode) is None
    from openclaw_rl.judge.fitted import signature

    folder = own_folder("my/model-1B")
    folder.mkdir(parents=True)
    for name in ("calibration", "probe"):
        data = json.loads((PACKAGE / f"{name}.json").read_text())
        data |= {"model": "my/model-1B", "signature": await signature(engine, parts.encode)}
        (folder / f"{name}.json").write_text(json.dumps(data))
    damaged = own_folder("another")
    damaged.mkdir()
    (damaged / "probe.json").write_text('{"model": ')  # comes first, and no other file is there
    found = await recognise(engine, parts.encode)
    assert found is not None
    assert found.model == "my/model-1B"


async def test_the_default_model_as_another_local_model(model_path: Path) -> None:
    """A folder given by its path is recognised by its numbers, and judged by labels with its states."""
    judge = create_judge("label", JudgeParts(model=str(model_path), load=load_model))
    verdict: Verdict = await judge.evaluate(CASE)
    assert isinstance(local(judge).chosen, LabelJudge)
    assert (verdict.score, len(verdict.votes)) == (-1, 3)
    await judge.close()
