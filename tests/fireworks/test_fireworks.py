"""Fireworks' client and a real SkyRL 0.3.0, which takes its requests; the service around it is a stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import EngineConfig, TrainConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.errors import EngineAway
from openclaw_rl.testing import tiny_model
from openclaw_rl.testing.contracts import EngineContract, TrainerContract
from openclaw_rl.testing.contracts.trainer import example
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.types import BASE_VERSION, Batch, Engine, ScoreRequest, Trainer, Weights
from tests.fireworks.service import KEY, PREFIX
from tests.tinker.server_process import ENVIRONMENTS, SkyRL, free_url, running

pytestmark = [pytest.mark.fireworks, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRL]:
    server = SkyRL(
        tiny_model(tmp_path_factory.mktemp("model")),
        tmp_path_factory.mktemp("skyrl"),
        free_url(),
        ENVIRONMENTS / "skyrl-json" / "bin" / "python",
        Path(__file__).parent / "service.py",
        num_adapters=32,
    )
    with running(server), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIREWORKS_API_KEY", KEY)
        yield server


@pytest.fixture(scope="session")
def place(skyrl: SkyRL) -> dict[str, str]:
    return {"url": f"{skyrl.url}{PREFIX}", "base_model": str(skyrl.model)}


@pytest.fixture(scope="session")
def make(skyrl: SkyRL, place: dict[str, str]) -> Callable[..., Trainer]:
    def make_trainer(**changes: Any) -> Trainer:
        settings = TrainConfig(trainer="fireworks", lora_rank=4, trainer_options=place)
        return create_trainer(TrainerParts(skyrl.model, "tiny", replace(settings, **changes)))

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
async def engine(skyrl: SkyRL, place: dict[str, str]) -> AsyncIterator[Engine]:
    parts = EngineParts(skyrl.model, EngineConfig(engine="fireworks", engine_options=place))
    engine = await asyncio.to_thread(create_engine, parts)
    yield engine
    await engine.close()


class TestTrainer(TrainerContract):
    @pytest.fixture
    def make_trainer(self, make: Callable[..., Trainer]) -> Callable[[], Trainer]:
        return make


class TestEngine(EngineContract):
    """Its sampling is a stand-in for the service's."""

    tolerance = 1e-3

    @pytest.fixture
    def weights(self, two_versions: list[Weights]) -> list[Weights]:
        return two_versions


async def test_a_version_is_sampled_with_the_weights_that_were_trained(
    engine: Engine, two_versions: list[Weights]
) -> None:
    text, told = ScoreRequest([5, 6, 7, 8, 9, 10], 3), []
    for weights in two_versions:
        await engine.load(weights)
        told.append((await engine.score(replace(text, policy_version=weights.version))).logprobs)
    told.append((await engine.score(text)).logprobs)
    assert len({tuple(round(value, 3) for value in each) for each in told}) == 3


def test_a_key_that_is_refused_is_named(
    make: Callable[..., Trainer], skyrl: SkyRL, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While training it is waited for, at the start it is an error."""
    monkeypatch.setenv("FIREWORKS_API_KEY", "fw-wrong")
    with pytest.raises(EngineAway, match="refuses the key in FIREWORKS_API_KEY"):
        make()
    with pytest.raises(ValueError, match="refuses the key in FIREWORKS_API_KEY"):
        create_engine(EngineParts(skyrl.model, EngineConfig(engine="fireworks", engine_options=place)))


def test_without_a_key_it_is_asked_for(skyrl: SkyRL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIREWORKS_API_KEY")
    with pytest.raises(ValueError, match="Fireworks wants a key: set FIREWORKS_API_KEY"):
        create_engine(
            EngineParts(skyrl.model, EngineConfig(engine="fireworks", engine_options={"base_model": "x"}))
        )
