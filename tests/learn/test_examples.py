"""The worked examples of all that can be plugged in: each by its one flag, and together on a real server."""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import httpx
import pytest

from openclaw_rl.algo import algorithm_for
from openclaw_rl.capabilities import check_choices, check_training
from openclaw_rl.commands.cli import _parser
from openclaw_rl.commands.flags import parse, read_config
from openclaw_rl.commands.train import read_plan
from openclaw_rl.config import TrainConfig
from openclaw_rl.engine import capabilities_of
from openclaw_rl.plugins import load_object
from openclaw_rl.scopes import ENVIRONMENTS
from openclaw_rl.testing import ServerProcess, tiny_model, wait_until
from openclaw_rl.testing.contracts.trainer import example
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.types import BASE_VERSION, EVERYONE, Batch

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = re.compile(r"^ *(openclaw-rl .+)$", re.M)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("my_*.py")), ids=lambda path: path.stem)
def test_an_example_is_used_by_one_flag(importable: None, path: Path, tmp_path: Path) -> None:
    """As its own text says; nothing else has to be set for it to fit the other parts."""
    [command] = COMMAND.findall(ast.get_docstring(ast.parse(path.read_text())) or "")
    words = shlex.split(command)
    assert len(words) == 4, "openclaw-rl, a command, a flag, and what it names"
    assert words[3].startswith(f"{path.stem}:")
    options = parse(_parser(), [*words[1:], "--home", str(tmp_path)])
    config = read_config(options)
    if words[1] == "train":
        assert read_plan(options, {}).train
    check_choices(config)
    able = capabilities_of(config.engine.engine)
    assert able is not None
    for scope in (EVERYONE, ENVIRONMENTS):
        check_training(config, able, algorithm_for(scope, config.learn).needs)


def test_a_loss_is_for_what_the_algorithm_gives(importable: None, tmp_path: Path) -> None:
    flags = ["serve", "--home", str(tmp_path), "--loss", "my_loss:cross_entropy", "--algo", "binary"]
    with pytest.raises(
        ValueError, match="for a teacher's log-probs, and --algo binary gives advantages; use"
    ):
        check_choices(read_config(parse(_parser(), flags)))


def test_the_example_of_a_loss_trains(importable: None, tmp_path: Path) -> None:
    """On what a teacher held likely, as the default algorithm gives it."""
    loss = load_object("loss", "my_loss:cross_entropy")
    settings = TrainConfig(train_device="cpu", lora_rank=4, learning_rate=1e-2)
    trainer = create_trainer(TrainerParts(tiny_model(tmp_path / "model"), "tiny", settings))
    trainer.resume(None)
    batch = Batch([example(1, 3, -0.5), example(2, 1, -0.1)], loss)
    losses = [trainer.step(batch, BASE_VERSION).loss for _ in range(6)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_the_examples_make_a_system(tmp_path: Path) -> None:
    arguments = (
        "--model", str(tiny_model(tmp_path / "model")), "--renderer", "qwen3",
        "--algo", "my_algo:PraiseOnly", "--judge", "my_judge:ShortIsGood",
        "--engine", "my_engine:TransformersEngine", "--trainer", "my_trainer:SgdTrainer",
        "--generate", "my_generate:best_of_two", "--rollout", "my_rollout:curious_user",
        "--batch-size", "2", "--held-out-share", "0", "--min-signal", "0",
    )  # fmt: skip
    paths = os.pathsep.join(map(str, (EXAMPLES.parent, EXAMPLES)))
    server = ServerProcess(tmp_path / "home", *arguments, environment={"PYTHONPATH": paths})
    with server, httpx.Client(base_url=server.url, timeout=30) as client:
        client.headers["authorization"] = f"Bearer {server.key}"

        def trained() -> bool:
            """A version was made; its checks take most of the time and say nothing about a random network."""
            made = client.get("/v1/policies").json()["data"]
            return any(policy["version"] and policy["status"] != "training" for policy in made)

        wait_until(trained, f"the example learned something\n{server.log()}", 300)
        session = client.get("/v1/sessions").json()["data"][-1]
        first = client.get(f"/v1/sessions/{session['id']}").json()["turns"][0]
        assert first["verdict"]["reason"].endswith("words")
        assert first["verdict"]["score"] == 1


@pytest.mark.parametrize(
    "flag", ["--engine", "--trainer", "--algo", "--loss", "--judge", "--generate", "--rollout"]
)
def test_a_plug_in_that_is_not_there_is_named(flag: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no_such_module"):
        load_object(flag.strip("-"), "no_such_module:Thing")
