"""The trainer's contract, against every trainer, the fake included; and what is refused at the start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.algo import ALGORITHMS, create_algorithm
from openclaw_rl.capabilities import check_training
from openclaw_rl.config import Config, EngineConfig, LearnConfig, TrainConfig
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.settings import extended
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.testing.contracts import TrainerContract
from openclaw_rl.train import TRAINERS, TrainerParts, capabilities_of, create_trainer
from openclaw_rl.train.fireworks import FireworksTrainer
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.tinker import TinkerTrainer
from openclaw_rl.types import Capabilities, Needs, Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestLocal(TrainerContract):
    @pytest.fixture
    def make_trainer(self, tiny_model: Path) -> Callable[[], Trainer]:
        settings = TrainConfig(train_device="cpu", lora_rank=4)
        return lambda: create_trainer(TrainerParts(tiny_model, "tiny", settings))


class TestScripted(TrainerContract):
    @pytest.fixture
    def make_trainer(self) -> Callable[[], Trainer]:
        return ScriptedTrainer


class TestExample(TrainerContract):
    @pytest.fixture
    def make_trainer(self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Trainer]:
        monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
        settings = TrainConfig(trainer="my_trainer:SgdTrainer", lora_rank=4)
        return lambda: create_trainer(TrainerParts(tiny_model, "tiny", settings))


def test_what_the_table_says_is_what_the_trainer_says() -> None:
    assert capabilities_of("local") == LocalTrainer.capabilities
    assert capabilities_of("tinker") == TinkerTrainer.capabilities
    assert capabilities_of("fireworks") == FireworksTrainer.capabilities


def test_an_implementation_s_own_settings_extend_the_section() -> None:
    section = TrainConfig(lora_rank=4)
    options = extended(LocalTrainerOptions, section, {"checkpoint_tokens": "64", "betas": [0.8, 0.9]})
    assert (options.lora_rank, options.checkpoint_tokens, options.betas) == (4, 64, (0.8, 0.9))
    engine = extended(LocalEngineOptions, EngineConfig(max_running=3), {"graphs": "no"})
    assert (engine.max_running, engine.graphs, engine.idle_chunk_tokens) == (3, False, 512)
    with pytest.raises(ValueError, match=r"no setting 'graph'; it has: .*did you mean 'graphs'"):
        extended(LocalEngineOptions, EngineConfig(), {"graph": "no"})
    with pytest.raises(ValueError, match="idle_chunk_tokens is 'many'; it must be a whole number"):
        extended(LocalEngineOptions, EngineConfig(), {"idle_chunk_tokens": "many"})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_local_parts_fit_every_algorithm(algo: str) -> None:
    config = Config(learn=LearnConfig(algo=algo))
    check_training(config, LocalEngine.capabilities, create_algorithm(config.learn).needs)


class Plain:
    """Adapters and the surrogate, nothing else."""

    capabilities = replace(LocalTrainer.capabilities, losses=frozenset({"clipped-surrogate"}),
                           custom_losses=False, full_weights=False)  # fmt: skip


class OfACloud(Plain):
    """Its weights stay where they are."""

    capabilities = replace(LocalTrainer.capabilities, makes="cloud")


class Silent:
    """Does not say what it can do."""


@pytest.mark.parametrize(
    ("config", "engine", "remedy"),
    [
        (Config(train=TrainConfig(finetune="full", trainer=f"{__name__}:Plain")), Capabilities(), "lora"),
        (Config(train=TrainConfig(finetune="full")), Capabilities(), "use --finetune lora"),
        (Config(), Capabilities(adapters=False), "use --finetune full, or --no-train"),
        (Config(learn=LearnConfig(algo="distill"), train=TrainConfig(trainer=f"{__name__}:Plain")),
         Capabilities(), "needs the loss reverse-kl"),
        (Config(learn=LearnConfig(algo="binary", loss="math:sqrt"),
                train=TrainConfig(trainer=f"{__name__}:Plain")), Capabilities(), "leave out --loss"),
        (Config(learn=LearnConfig(algo="hybrid")), Capabilities(scores_candidates=False),
         "use --algo binary"),
        (Config(train=TrainConfig(trainer="tinkr")), Capabilities(), "known: local"),
        (Config(learn=LearnConfig(algo="hinted")), Capabilities(top_logprobs=False), "use --algo binary"),
        (Config(train=TrainConfig(trainer="tinker")), Capabilities(),
         "use --trainer local or --engine tinker"),
        (Config(engine=EngineConfig(engine="tinker")), Capabilities(loads=("tinker",)),
         "use --trainer tinker or --engine local or --engine vllm"),
        (Config(train=TrainConfig(trainer=f"{__name__}:OfACloud")), Capabilities(loads=("file", "s3")),
         "weights at cloud://…, where it wants file://… or s3://…; use --trainer local"),
        (Config(train=TrainConfig(trainer=f"{__name__}:Silent")), Capabilities(), "give it 'capabilities'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_remedy(
    config: Config, engine: Capabilities, remedy: str
) -> None:
    needs: Needs = create_algorithm(config.learn).needs
    with pytest.raises(ValueError, match=remedy):
        check_training(config, engine, needs)
    assert "local" in TRAINERS
