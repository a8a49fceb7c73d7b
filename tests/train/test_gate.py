"""The gate on the real model: healthy weights pass, ruined ones are stopped with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.judge.rules import degeneration
from openclaw_rl.models import eos_ids
from openclaw_rl.render import create_renderer
from openclaw_rl.testing.examples import make_example
from openclaw_rl.train.exam import gate_requests
from openclaw_rl.train.gate import Gate, GateResult, Subject
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.types import (
    Ask,
    Batch,
    Renderer,
    SamplingParams,
    ScoreRequest,
    StepReport,
    Token,
    TurnRecord,
    Weights,
)

#: One engine for all tests here.
on_one_loop = pytest.mark.asyncio(loop_scope="module")
ASKED = ["What is rain?", "How do locks work?", "What is a comet?", "Why do dogs bark?"]


@dataclass
class Bench:
    """A trainer and an engine on the same model, and the gate between them."""

    engine: LocalEngine
    trainer: LocalTrainer
    renderer: Renderer
    gate: Gate
    folder: Path
    encode: Callable[[str], list[int]]

    async def turn(self, asked: str, reply: str) -> TurnRecord:
        """A reply as if the base had given it."""
        prompt = self.renderer.render([{"role": "user", "content": asked}])
        ids = [*self.encode(reply), min(self.renderer.stop_ids)]
        scores = await self.engine.score(ScoreRequest([*prompt, *ids], len(prompt)))
        tokens = [Token(i, lp, lp, (), (), 0) for i, lp in zip(ids, scores.logprobs, strict=True)]
        return TurnRecord(
            asked, "s", "ann", "chat", "main", [], None, {}, {}, prompt, tokens, SamplingParams(64), 0,
            "stop", 0.0,
        )  # fmt: skip

    async def train(self, turns: Sequence[TurnRecord], push: float, steps: int, rate: float) -> StepReport:
        self.trainer.options = replace(self.trainer.options, learning_rate=rate)
        report = None
        for _ in range(steps):
            items = []
            for turn in turns:
                shape = (len(turn.tokens), 1)
                ids = np.array([t.id for t in turn.tokens], np.int32).reshape(shape)
                # Fresh log-probs each time: every step is a first step, so that clipping does not stop it.
                old = await self._now(turn)
                items.append(make_example(turn, 1, ids, old, np.full(shape, push, np.float32)))
            report = self.trainer.step(Batch(items), 0)
        assert report is not None
        self.trainer.save(self.folder, {})
        return report

    async def _now(self, turn: TurnRecord) -> np.ndarray:
        from openclaw_rl.train.packed import pack

        ids = np.array([[t.id] for t in turn.tokens], np.int32)
        blank = np.zeros(ids.shape, np.float32)
        [row] = pack([make_example(turn, 1, ids, blank, blank)], 4096, self.trainer.device)
        return self.trainer._logprobs(row).detach().numpy()

    async def check(self, report: StepReport, held_out: Sequence[tuple[TurnRecord, int]] = ()) -> GateResult:
        if report.finite:
            await self.engine.load(Weights.in_folder(1, self.folder))
        prompts = [self.renderer.render([{"role": "user", "content": text}]) for text in gate_requests()[:24]]
        subject = Subject([Ask(prompt, prompt) for prompt in prompts])
        return await self.gate.check(1, 0, report, held_out, [subject])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_path: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model_path, LocalEngineOptions(device="cpu"))
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def parts(engine: LocalEngine, model_path: Path) -> tuple[Renderer, Callable[[str], list[int]], Gate]:
    """A gate asks the base once."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    renderer = create_renderer(tokenizer, "llama", None, eos_ids(model_path))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return renderer, encode, Gate(engine, renderer, encode, degeneration)


@pytest_asyncio.fixture(loop_scope="module")
async def bench(
    engine: LocalEngine,
    parts: tuple[Renderer, Callable[[str], list[int]], Gate],
    model_path: Path,
    tmp_path: Path,
) -> AsyncIterator[Bench]:
    renderer, encode, gate = parts
    yield Bench(
        engine,
        LocalTrainer(model_path, LocalTrainerOptions(train_device="cpu", micro_batch_tokens=512)),
        renderer,
        gate,
        tmp_path / "1",
        encode,
    )
    if 1 in engine.status().versions:
        await engine.unload(1)


def failed(result: GateResult) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


@pytest.mark.gate
@on_one_loop
async def test_a_small_sensible_step_passes(bench: Bench) -> None:
    """So does the version of ``tests/e2e/test_learning.py``, which runs with every ``make test``."""
    turns = [
        await bench.turn("What is rain?", "Rain is water that falls from clouds."),
        await bench.turn("Why do dogs bark?", "Dogs bark to warn, to greet and to play."),
    ]
    # After a step at 1e-3, one reply in seven repeats itself (docs/lab/gate.md).
    result = await bench.check(await bench.train(turns, 0.3, steps=1, rate=1e-4))
    assert result.passed, result.reason
    assert {check.name for check in result.checks} >= {"finite", "facts", "jobs", "tool calls", "strangeness"}


@pytest.mark.gate
@on_one_loop
async def test_a_batch_of_degenerate_replies_is_stopped(bench: Bench) -> None:
    """Sixteen times rewarded for saying the same thing over and over."""
    turns = [await bench.turn(asked, "ha " * 24) for asked in ASKED]
    result = await bench.check(await bench.train(turns, 1.0, steps=8, rate=3e-3))
    assert not result.passed
    assert failed(result) & {"broken replies", "facts", "specificity", "strangeness"}
    assert any(name in result.reason for name in failed(result))


@pytest.mark.gate
@on_one_loop
async def test_rewards_upside_down_are_stopped_by_the_users_own_turns(bench: Bench) -> None:
    """Liked replies pushed down, disliked ones up: held-out turns of the same user tell."""
    good = [await bench.turn(asked, "It is simple. Here is the short answer.") for asked in ASKED]
    bad = [await bench.turn(asked, "That is a long story, let me tell you all of it.") for asked in ASKED]
    held_out = [(good[0], 1), (good[1], 1), (bad[0], -1), (bad[1], -1)]
    report = await bench.train(bad[2:], 1.0, steps=4, rate=1e-3)
    report = await bench.train(good[2:], -0.5, steps=2, rate=1e-3)
    result = await bench.check(report, held_out)
    assert "held-out turns" in failed(result), result.checks


@on_one_loop
async def test_weights_that_are_not_numbers_are_never_loaded(bench: Bench) -> None:
    turn = await bench.turn("What is rain?", "Rain is water.")
    report = await bench.train([turn], float("nan"), steps=1, rate=1e-3)
    result = await bench.check(report)
    assert failed(result) == {"finite"}
    assert 1 not in bench.engine.status().versions
