"""Names from other launchers: understood, or answered."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.algo import ALGORITHMS, create_algorithm
from openclaw_rl.algo.hybrid import HybridSum
from openclaw_rl.commands import cli
from openclaw_rl.commands.flags import read_config
from openclaw_rl.config import Config, fields, load_config
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.known_names import (
    ANSWERED,
    FLAGS,
    METHODS,
    MOVED,
    MOVED_NAMES,
    UNDERSTOOD,
    notes,
    options_of,
)
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.train.local_options import LocalTrainerOptions


def config_of(*arguments: str) -> Config:
    """What a command line comes to, without running it."""
    found: list[Config] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_serve", lambda options: found.append(read_config(options)))
        assert cli.main(arguments) == 0
    return found[0]


def test_they_all_name_a_setting() -> None:
    known = {name for _, name, _ in fields()}
    assert {*UNDERSTOOD.values(), *FLAGS.values()} <= known | {*MOVED_NAMES}
    assert not known & {*MOVED_NAMES}
    assert set(METHODS.values()) <= set(ALGORITHMS)


OWN: dict[str, dict[str, Any]] = {
    "engine": {"local": LocalEngineOptions},
    "train": {"local": LocalTrainerOptions},
    "learn": ALGORITHMS,
}


def test_settings_that_moved_are_options_of_the_implementations_they_name() -> None:
    for section, names in MOVED.items():
        for name, owners in names.items():
            for owner in owners:
                [option] = options_of(section, owner, {name: 1})
                known = {field.name for field in dataclass_fields(OWN[section][owner])}
                assert option in known, (name, owner)


def test_their_flags_still_work(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    learn = config_of("serve", "--algo", "hybrid", "--no-retell", "--teacher-k", "1", *home).learn
    assert learn.algo_options == {"retell": False, "teacher_k": "1"}
    learn = config_of("serve", "--outcome-weight", "2", "--env-step-scale", "0.5", *home).learn
    assert learn.env_algo_options == {"outcome_weight": "2", "scale": "0.5"}
    config = config_of(
        "serve", "--kernel", "native@avx2", "--num-threads", "1", "--train-base", "int4", *home
    )
    assert config.engine.engine_options == {"kernel": "native@avx2", "num_threads": "1"}
    assert config.train.trainer_options == {"train_base": "int4"}


def test_variables_are_read_and_ours_win(tmp_path: Path) -> None:
    environment = {
        "OPENCLAW_RL_HOME": str(tmp_path), "HF_CKPT": "Qwen/Qwen3-4B", "PRM_M": "1", "OPENCLAW_PORT": "3001",
        "SAVE_CKPT": "/models/versions", "SERVED_MODEL_NAME": "mine", "JUDGE_MODEL_PATH": "Qwen/Qwen3-8B",
    }  # fmt: skip
    config = load_config({"algo": "hybrid-sum"}, environment={**environment, "OPENCLAW_COMBINE_W_RL": "0.5"})
    assert config.learn.algo_options == {"rl_weight": "0.5"}
    config = load_config(environment=environment)
    assert (config.engine.model, config.judge.majority_vote_n, config.serve.port) == (
        "Qwen/Qwen3-4B",
        1,
        3001,
    )
    assert (config.serve.served_model_name, config.judge.judge_model) == ("mine", "Qwen/Qwen3-8B")
    assert config.learn.policies == "/models/versions"
    ours = load_config(environment={**environment, "OPENCLAW_RL_MODEL": "ours", "PORT": "3002"})
    assert (ours.engine.model, ours.serve.port) == ("ours", 3002)


def test_a_web_proxy_s_address_is_not_taken_for_ours() -> None:
    """The server would listen there, or fail to start."""
    proxy = {"PROXY_HOST": "proxy.example.com", "PROXY_PORT": "8080"}
    assert load_config(environment=proxy).serve == load_config(environment={}).serve
    assert notes(proxy) == []
    theirs = load_config(environment={**proxy, "PRM_M": "1"}).serve
    assert (theirs.host, theirs.port) == ("proxy.example.com", 8080)
    assert len(notes({**proxy, "NUM_GPUS": "8"})) == 3


def test_each_one_that_is_set_is_said() -> None:
    assert notes({"PATH": "/bin"}) == []
    said = "\n".join(notes({"HF_CKPT": "x", "NUM_GPUS": "8", "DATA_PATH": "d.json"}))
    assert "HF_CKPT is read as --model (OPENCLAW_RL_MODEL)" in said
    assert "NUM_GPUS is not used: one process uses one GPU" in said
    assert "openclaw-rl data import" in said
    [moved] = notes({"OPENCLAW_RL_TEACHER_K": "3"})
    assert "an option of hybrid now: teacher_k under [learn.hybrid]" in moved
    [moved] = notes({"OPENCLAW_RL_KERNEL": "float"})
    assert "an option of local now: kernel under [engine.local]" in moved
    assert len(notes(dict.fromkeys([*UNDERSTOOD, *ANSWERED], "1"))) == len(UNDERSTOOD) + len(ANSWERED)


def test_the_key_may_come_under_the_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_RL_API_KEY", raising=False)
    monkeypatch.setenv("SGLANG_API_KEY", "sk-theirs")
    assert KeyRing.in_home(tmp_path).user_of("sk-theirs") == "default"
    monkeypatch.setenv("OPENCLAW_RL_API_KEY", "sk-ours")
    assert KeyRing.in_home(tmp_path).user_of("sk-ours") == "default"


def test_run_takes_the_flags_that_people_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(
        "run", "--method", "combine", "--model-name", "Qwen/Qwen3-4B", "--batch-size", "16", "--prm-m", "1",
        "--w-opd", "0.5", "--w-rl", "2.0", "--proxy-port", "3003", "--home", str(tmp_path),
    )  # fmt: skip
    learn = config.learn
    assert config.serve.port == 3003
    assert (config.engine.model, learn.algo, learn.batch_size) == ("Qwen/Qwen3-4B", "hybrid-sum", 16)
    made = create_algorithm(learn)
    assert isinstance(made, HybridSum)
    assert (config.judge.majority_vote_n, made.opd_weight, made.rl_weight) == (1, 0.5, 2.0)
    assert config_of("run", "--home", str(tmp_path)).learn.algo == "hinted"
    assert cli.main(["run", "--method", "rl", "--algo", "opd", "--home", str(tmp_path)]) == 2
    assert "--method rl is --algo binary" in capsys.readouterr().err
