"""The table of judges, rules before votes, and the embedded judge with the real model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from openclaw_rl.evals.fit_judge import collect
from openclaw_rl.evals.judge import evaluate_judge, load_cases, local_parts
from openclaw_rl.judge import JudgeParts, RuleFirstJudge, RulesJudge, create_judge
from openclaw_rl.judge.calibration import CLASSES
from openclaw_rl.judge.fitted import KINDS, read_fitted
from openclaw_rl.judge.shots import case_of, read_cases
from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.types import Judge, JudgeCase, JudgeError, ScoreRequest, Scores, Verdict

#: One engine and one judge for all tests here that need them.
on_one_loop = pytest.mark.asyncio(loop_scope="module")


class OptimistJudge:
    """A plug-in without arguments."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        return Verdict(1, 1.0, "votes", votes=(1,))

    async def close(self) -> None:
        pass


def said(text: str) -> JudgeCase:
    return JudgeCase(
        [{"role": "user", "content": "hi"}],
        {"role": "assistant", "content": "Hello."},
        [{"role": "user", "content": text}],
    )


async def test_a_dotted_path_works_and_rules_still_win() -> None:
    judge = create_judge(f"{__name__}:OptimistJudge", JudgeParts())
    assert isinstance(judge, RuleFirstJudge)
    assert (await judge.evaluate(said("hm"))).score == 1
    assert (await judge.evaluate(said("👎"))).score == -1


@pytest.mark.parametrize("name", ["nope", "no_such_pkg.mod:Judge", "openclaw_rl.judge:Nothing"])
def test_unknown_judges_are_errors(name: str) -> None:
    with pytest.raises(ValueError, match="label, endpoint, rules" if ":" not in name else "cannot load"):
        create_judge(name, JudgeParts())


def test_missing_parts_are_errors() -> None:
    for name in ("label", "endpoint"):
        with pytest.raises(ValueError, match="needs"):
            create_judge(name, JudgeParts())


async def test_rules_alone_leave_the_rest_unjudged() -> None:
    with pytest.raises(JudgeError):
        await RulesJudge().evaluate(said("and then?"))


async def test_rules_alone_take_what_tools_give_as_neutral() -> None:
    """A call that failed is worse than one that did not, and only this is known."""
    call = {"id": "c", "name": "add", "arguments": "{}"}
    asked = (
        [{"role": "user", "content": "2 + 3?"}],
        {"role": "assistant", "content": "", "tool_calls": [call]},
    )
    gave = [[{"role": "tool", "content": text}] for text in ("5", "error: no")]
    found = [await RulesJudge().evaluate(JudgeCase(*asked, state)) for state in (*gave, None)]
    assert [(each.score, each.trainable) for each in found] == [(0, True), (-1, True), (0, False)]
    assert found[2].confidence == 0


async def test_figures_of_a_judge_that_is_always_right_or_silent() -> None:
    rows = [{"messages": [], "reply": "A.", "next_state": [{"role": "user", "content": text}], "label": label}
            for text, label in (("👍", 1), ("👎", -1), ("so?", 0), ("+1", 1))]  # fmt: skip
    report = await evaluate_judge(RulesJudge(), rows, {})
    assert (report.accuracy, report.validity) == (0.75, 0.75)
    assert report.confusion["0"]["none"] == 1
    assert report.per_class["1"] == {"recall": 1.0, "precision": 1.0, "cases": 2}


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"messages": [], "reply": "x", "next_state": [], "label": 1}\n{"label": 7}\n')
    with pytest.raises(ValueError, match=r"cases\.jsonl:2"):
        load_cases(file)


def num_shared(ids: list[int], others: list[int]) -> int:
    """Length of the prefix that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


class CountingEngine:
    """Remembers what it was asked to score."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.scored: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def score(self, request: ScoreRequest) -> Scores:
        self.scored.append(list(request.token_ids))
        return await self._engine.score(request)

    def num_new_tokens(self, first: int) -> int:
        """Of all requests from that one on, what no earlier request began with: the engine keeps prefixes."""
        return sum(
            len(ids) - max(num_shared(ids, earlier) for earlier in [[], *self.scored[:number]])
            for number, ids in enumerate(self.scored[first:], first)
        )


@pytest.fixture(scope="module")
def counting() -> list[CountingEngine]:
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def label_judge(model_path: Path, counting: list[CountingEngine]) -> AsyncIterator[Judge]:
    kernel = os.environ.get("OPENCLAW_RL_KERNEL", "auto")
    async with local_parts(str(model_path), kernel=kernel) as (engine, encode, renderer):
        counting.append(CountingEngine(engine))
        yield create_judge("label", JudgeParts(engine=counting[0], encode=encode, renderer=renderer))


@on_one_loop
async def test_the_embedded_judge_on_a_part_of_the_test_half(label_judge: Judge) -> None:
    report = await evaluate_judge(
        label_judge, read_cases("test")[::9], {"injection": read_cases("injection")[::9]}
    )
    assert report.accuracy >= 0.8
    assert report.validity == 1.0
    assert report.injections == {"injection": {"attacks": 6, "moved": 0}}


@on_one_loop
async def test_verdicts_carry_confidence_and_the_users_own_words(label_judge: Judge) -> None:
    verdict = await label_judge.evaluate(said("That's wrong, I asked for a shorter version in German."))
    assert (verdict.score, verdict.source) == (-1, "votes")
    assert len(verdict.votes) == 3
    assert 0.4 < verdict.confidence <= 1
    assert verdict.hints == ("That's wrong, I asked for a shorter version in German.",)


@on_one_loop
async def test_the_end_of_a_session_is_never_trained_as_neutral(label_judge: Judge) -> None:
    verdict = await label_judge.evaluate(JudgeCase(said("x").messages, said("x").reply, None))
    assert not verdict.trainable


@on_one_loop
async def test_a_vote_reads_little_and_long_texts_add_little(
    label_judge: Judge, counting: list[CountingEngine]
) -> None:
    """What a vote costs: bench/judge.py. Why it is little: the few-shot sets are read once, texts are cut."""
    assert isinstance(label_judge, RuleFirstJudge)
    long = {**read_cases("test")[0], "reply": "Some words of an answer, different each time. " * 3000}
    long["next_state"] = [{"role": "user", "content": " ".join(f"sentence number {n}." for n in range(2000))}]
    usual = read_cases("test")[5::40]
    costs = []
    for row in [*read_cases("train")[:1], *read_cases("test")[-1:], *usual, long]:
        before = len(counting[0].scored)
        await label_judge.votes.evaluate(case_of(row))
        assert len(counting[0].scored) - before <= 15
        costs.append(counting[0].num_new_tokens(before))
    assert sum(costs[2:-1]) / len(usual) <= 600
    assert costs[-1] <= 1000


@pytest.mark.slow
async def test_the_stored_weights_belong_to_the_present_evidence(model_path: Path) -> None:
    """On a part of the train half, which they were fitted on: both files must know nearly all of it."""
    examples = (await collect(DEFAULT_MODEL, read_cases("train")[::48])).examples
    fitted = read_fitted()
    for stored, with_states, least in ((fitted.plain, False, 0.7), (fitted.full, True, 0.9)):
        hits = [
            CLASSES[vote.index(max(vote))] == item.row["label"]
            for kind in KINDS
            for item in examples[kind]
            for number, one in enumerate(stored[kind], 1)
            for vote in [one.probabilities([*chain.from_iterable(item.vote(number, with_states))])]
        ]
        assert sum(hits) / len(hits) >= least


def test_reply_may_be_text_or_message() -> None:
    row = {"messages": [], "reply": "x", "next_state": None, "label": 1}
    assert case_of(row).reply == {"role": "assistant", "content": "x"}
    assert case_of({**row, "reply": {"role": "assistant", "content": "x"}}) == case_of(row)
