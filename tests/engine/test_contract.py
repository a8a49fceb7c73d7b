"""The engine's contract, against every engine: embedded, over the socket, scripted, and the example."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openclaw_rl.config import EngineConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.engine.remote import RemoteEngine
from openclaw_rl.serve.listen import Listener, bind_private
from openclaw_rl.serve.private import create_private_app
from openclaw_rl.testing import ScriptedEngine, byte_tokenizer, tiny_model
from openclaw_rl.testing.contracts import EngineContract
from openclaw_rl.types import Engine, Weights

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def two_adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    found = []
    for version in (1, 2):
        torch.manual_seed(version)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        adapted = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear"))
        folder = tmp_path_factory.mktemp("adapter")
        adapted.save_pretrained(folder, save_embedding_layers=False)
        found.append(Weights.in_folder(version, folder))
    return found


class TestLocal(EngineContract):
    @pytest.fixture
    def weights(self, two_adapters: list[Weights]) -> list[Weights]:
        return two_adapters

    @pytest.fixture
    async def engine(self, model: Path) -> AsyncIterator[Engine]:
        engine = create_engine(
            EngineParts(model, EngineConfig(device="cpu", engine_options={"kernel": "float"}))
        )
        yield engine
        await engine.close()


class TestRemote(TestLocal):
    """The same engine, asked through the socket that the learn process uses."""

    @pytest.fixture
    async def engine(self, model: Path, tmp_path: Path) -> AsyncIterator[Engine]:
        import uvicorn

        local = create_engine(
            EngineParts(model, EngineConfig(device="cpu", engine_options={"kernel": "float"}))
        )
        door = bind_private(tmp_path / "engine.sock")
        server = Listener(uvicorn.Config(create_private_app(local), lifespan="off", log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[door]))
        remote = RemoteEngine(tmp_path / "engine.sock")
        await remote.connect()
        assert remote.capabilities == replace(local.capabilities, warm_switching=False)
        yield remote
        await remote.close()
        server.should_exit = server.force_exit = True
        await serving
        await local.close()


class TestScripted(EngineContract):
    tolerance = 5.0
    """Its scores are made up; only their form is held to the contract."""

    @pytest.fixture
    def weights(self, tmp_path: Path) -> list[Weights]:
        return [Weights.in_folder(version, tmp_path) for version in (1, 2)]

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        engine = ScriptedEngine(byte_tokenizer())
        yield engine
        await engine.close()


class TestExample(TestLocal):
    @pytest.fixture
    async def engine(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
        monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
        engine = create_engine(EngineParts(model, EngineConfig(engine="my_engine:TransformersEngine")))
        yield engine
        await engine.close()


def test_an_unknown_engine_is_named(model: Path) -> None:
    with pytest.raises(ValueError, match="unknown engine 'vlm'; known: local"):
        create_engine(EngineParts(model, EngineConfig(engine="vlm")))
