"""Engine and trainer against a real SkyRL server: contracts, exact log-probs, learning, its death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.algo import create_algorithm
from openclaw_rl.capabilities import check_training
from openclaw_rl.config import EngineConfig, TrainConfig, load_config
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.errors import EngineAway
from openclaw_rl.testing.contracts import EngineContract, TrainerContract
from openclaw_rl.testing.contracts.trainer import example
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.train.losses import loss_of
from openclaw_rl.types import (
    BASE_VERSION,
    Batch,
    Engine,
    Example,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    Source,
    Token,
    Trainer,
    Weights,
)

pytestmark = [pytest.mark.tinker, pytest.mark.filterwarnings("default")]
PROMPT = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="session")
def make(skyrl: Any) -> Callable[..., Trainer]:
    def make_trainer(**changes: Any) -> Trainer:
        options = {"url": skyrl.url, "base_model": str(skyrl.model), **changes.pop("options", {})}
        settings = replace(TrainConfig(trainer="tinker", lora_rank=4, trainer_options=options), **changes)
        return create_trainer(TrainerParts(skyrl.model, "tiny", settings))

    return make_trainer


@pytest.fixture(scope="session")
def two_versions(make: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    trainer, found = make(learning_rate=0.02), []
    for version in (1, 2):
        trainer.resume(None)
        trainer.step(Batch([example(version)]), BASE_VERSION)
        uri = trainer.save(tmp_path_factory.mktemp("version"), {})
        assert uri is not None
        found.append(Weights(version, uri))
    return found


@pytest.fixture
async def engine(skyrl: Any) -> AsyncIterator[Engine]:
    options = {"url": skyrl.url, "base_model": str(skyrl.model)}
    parts = EngineParts(skyrl.model, EngineConfig(engine="tinker", engine_options=options))
    engine = await asyncio.to_thread(create_engine, parts)
    yield engine
    await engine.close()


class TestEngine(EngineContract):
    tolerance = 1e-3

    @pytest.fixture
    def weights(self, two_versions: list[Weights]) -> list[Weights]:
        return two_versions


class TestTrainer(TrainerContract):
    @pytest.fixture
    def make_trainer(self, make: Callable[..., Trainer]) -> Callable[[], Trainer]:
        return make


def test_log_probs_are_those_of_transformers(skyrl: Any, make: Callable[..., Trainer]) -> None:
    """The trainer's report says how far the server is from what was recorded; here, from transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(skyrl.model, dtype=torch.float32).eval()
    given = example(1)
    ids = torch.tensor([[*given.prompt_ids, *given.reply_ids]])
    with torch.inference_mode():
        rows = torch.log_softmax(model(ids).logits[0, len(given.prompt_ids) - 1 : -1], -1)
    exact = rows.gather(1, torch.from_numpy(given.ids_NK).long()).numpy()
    trainer = make()
    trainer.resume(None)
    recorded = replace(given, old_NK=exact)
    report = trainer.step(Batch([recorded]), BASE_VERSION)
    assert report.mismatch == pytest.approx(0.0, abs=1e-3)
    loss = loss_of(Batch([recorded]))(*map(torch.from_numpy, (exact, exact, given.signal_NK)))
    assert report.loss == pytest.approx(float(loss.sum()) / given.num_free, abs=1e-3)


async def collect(engine: Engine, request: GenerateRequest) -> list[Token]:
    return [token async for token in engine.generate(request)]


async def test_versions_stay_what_they_are_while_training_goes_on(
    engine: Engine, make: Callable[..., Trainer], tmp_path: Path
) -> None:
    """SkyRL's JAX backend would sample with the weights of the step at hand, and train on those sampled."""
    text = ScoreRequest([*PROMPT, 11, 12], len(PROMPT))
    losses: list[list[float]] = []
    for asks_between in (False, True):
        trainer = make(learning_rate=0.02)
        trainer.resume(None)
        losses.append([])
        told: dict[int, list[float]] = {}
        for version in (1, 2, 3):
            report = await asyncio.to_thread(trainer.step, Batch([example(version)]), version - 1)
            losses[-1].append(report.loss)
            uri = await asyncio.to_thread(trainer.save, tmp_path, {})
            assert uri is not None
            if asks_between:
                await engine.load(Weights(10 + version, uri))
                for known in range(1, version + 1):
                    scores = (await engine.score(replace(text, policy_version=10 + known))).logprobs
                    assert told.setdefault(known, scores) == pytest.approx(scores, abs=1e-4)
    assert len({round(values[0], 3) for values in told.values()}) == 3, "each differs from the others"
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


async def test_it_learns_and_goes_on_after_the_server_was_killed(
    engine: Engine, skyrl: Any, make: Callable[..., Trainer], tmp_path: Path
) -> None:
    """Reward for one letter: its share rises. A step that broke is taken again from the saved version."""
    wanted, trainer = 68, make(learning_rate=0.02)

    async def share(version: int) -> float:
        rows = [[*PROMPT, wanted]]
        scores = [await engine.score(ScoreRequest(ids, len(PROMPT), policy_version=version)) for ids in rows]
        return float(np.exp(scores[0].logprobs[0]))

    async def step(version: int, asked: int) -> Weights:
        tokens = [
            (
                await collect(
                    engine, GenerateRequest(PROMPT, SamplingParams(1, seed=seed), policy_version=asked)
                )
            )[0]
            for seed in range(6)
        ]
        rewards = np.array([1.0 if token.id == wanted else -0.3 for token in tokens])
        made = [_rewarded(token, float(reward)) for token, reward in zip(tokens, rewards, strict=True)]
        made.append(_rewarded(Token(wanted, -3.0, -3.0, (), (), version), 1.0))
        await asyncio.to_thread(trainer.step, Batch(made), version)
        uri = await asyncio.to_thread(trainer.save, tmp_path, {"version": version + 1})
        assert uri is not None
        return Weights(version + 1, uri)

    await asyncio.to_thread(trainer.resume, None)
    before, saved = await share(BASE_VERSION), None
    for version in range(2):
        saved = await step(version, version)
        await engine.load(saved)
    assert saved is not None
    middle = await share(2)
    skyrl.kill()
    patient = trainer.options  # type: ignore[attr-defined]
    trainer.options = replace(patient, patience_s=5.0)  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(trainer.step, Batch([_rewarded(Token(wanted, -1, -1, (), (), 2), 1.0)]), 2)
    skyrl.start()
    trainer.options = patient  # type: ignore[attr-defined]
    await asyncio.to_thread(trainer.resume, saved)
    assert trainer.state == {"version": 2}
    assert await share(2) == pytest.approx(middle, abs=1e-3), "versions answer again after its start"
    last = await step(2, 2)
    await engine.load(last)
    after = await share(3)
    print(
        f"\nshare of the rewarded token: {before:.3f}, after two steps {middle:.3f}, after three {after:.3f}"
    )
    assert before < min(middle, after)


def _rewarded(token: Token, reward: float) -> Example:
    return Example(
        PROMPT, [token.id], np.array([[token.id]], np.int32), np.array([[token.logprob]], np.float32),
        np.array([[reward]], np.float32), Source("own", ("t",), "ann", policy_version=token.policy_version),
        num_free=1,
    )  # fmt: skip


def test_what_cannot_be_used_is_said_at_the_start(skyrl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**options: str) -> None:
        create_engine(EngineParts(skyrl.model, EngineConfig(engine="tinker", engine_options=options)))

    with pytest.raises(ValueError, match=r"has no model SmolLM2.*; it has: "):
        start(url=skyrl.url)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ValueError, match="Tinker wants a key: set TINKER_API_KEY"):
        start()


def test_what_this_server_does_with_gradients_is_found_out(make: Callable[..., Trainer]) -> None:
    """Its JAX backend takes means, and never clips at the client's norm."""
    assert make().options.reduction == "mean"  # type: ignore[attr-defined]
    with pytest.raises(EngineAway, match="takes the mean over rows"):
        make(options={"reduction": "sum"})
    with pytest.raises(EngineAway, match="ignore --grad-clip"):
        make(grad_clip=0.5)


async def test_learning_is_refused_where_the_sampled_log_probs_are_unknown(skyrl: Any) -> None:
    options = {"url": skyrl.url, "base_model": str(skyrl.model)}
    settings = {
        "engine": "tinker",
        "engine_options": options,
        "trainer": "tinker",
        "trainer_options": options,
    }
    config = load_config({"algo": "binary", **settings}, environment={})
    for accepts in (False, True):
        asked = {**options, "assume_temperature_1": accepts}
        parts = EngineParts(skyrl.model, EngineConfig(engine="tinker", engine_options=asked))
        engine = await asyncio.to_thread(create_engine, parts)
        if accepts:
            check_training(config, engine.capabilities, create_algorithm(config.learn).needs)
        else:
            with pytest.raises(ValueError, match="assume_temperature_1=true"):
                check_training(config, engine.capabilities, create_algorithm(config.learn).needs)
        await engine.close()
