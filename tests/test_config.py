from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.algo import StepSize, create_algorithm, step_size
from openclaw_rl.algo.hybrid import Hybrid
from openclaw_rl.config import Config, fields, load_config, to_environment
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.settings import extended


def load(home: Path, toml: str = "", env: dict[str, str] | None = None, **flags: Any) -> Config:
    home.mkdir(exist_ok=True)
    if toml:
        (home / "config.toml").write_text(toml)
    return load_config(flags, {"OPENCLAW_RL_HOME": str(home), **(env or {})})


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    toml, env = "[serve]\nport = 1111\n", {"OPENCLAW_RL_PORT": "2222"}
    assert load(tmp_path / "a").serve.port == 30000
    assert load(tmp_path / "b", toml).serve.port == 1111
    assert load(tmp_path / "c", toml, env).serve.port == 2222
    assert load(tmp_path / "d", toml, env, port=3333).serve.port == 3333
    assert load(tmp_path / "e", toml, env, port=None).serve.port == 2222, "None is not given"


def test_an_override_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    config = load(tmp_path, '[serve]\nport = 1111\nhost = "0.0.0.0"\n[engine]\nmax_running = 3\n', port=5)
    assert (config.serve.port, config.serve.host, config.engine.max_running) == (5, "0.0.0.0", 3)


def test_short_variables_yield_to_long_ones(tmp_path: Path) -> None:
    env = {"PORT": "1", "HOST": "::1"}
    assert load(tmp_path, env=env).serve.port == 1
    assert load(tmp_path, env=env).serve.host == "::1"
    assert load(tmp_path, env={**env, "OPENCLAW_RL_PORT": "2"}).serve.port == 2
    assert load(tmp_path, env={"PORT": ""}).serve.port == 30000, "empty is not given"


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    env = {"OPENCLAW_RL_AUTH": "false", "OPENCLAW_RL_LEDGER_URL": "sqlite:///x", "OPENCLAW_RL_DEVICE": "cpu"}
    config = load(tmp_path, env=env)
    assert (config.serve.auth, config.ledger.ledger_url) == (False, "sqlite:///x")
    assert config.engine.device == "cpu"


def test_the_home_folder_is_expanded_and_may_be_a_flag(tmp_path: Path) -> None:
    assert load_config({"home": "~/x"}, {}).home == Path("~/x").expanduser()
    env = {"OPENCLAW_RL_HOME": str(tmp_path / "env")}
    assert load_config({"home": str(tmp_path / "flag")}, env).home == tmp_path / "flag"
    assert load_config({}, {}).home == Path("~/.openclaw-rl").expanduser()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config file .*missing\.toml"):
        load_config({}, {}, tmp_path / "missing.toml")
    (tmp_path / "other.toml").write_text("[serve]\nport = 4\n")
    assert load_config({}, {}, tmp_path / "other.toml").serve.port == 4


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("prot = 1", "unknown setting prot; did you mean 'serve.port'"),
        ("[serve]\nprot = 1", r"unknown setting serve\.prot; did you mean 'serve\.port'"),
        ("[sevre]\nport = 1", "unknown setting sevre; did you mean 'serve'"),
        ("[serve]\nport = 70000", r"serve\.port is 70000; .*65535"),
        ("[serve]\nport = 'x'", r"serve\.port is 'x'; it must be a whole number"),
        ("[serve", "not valid TOML"),
        ("serve = 3", "serve is 3; it must be a table of settings"),
        ("[engine]\nkernal = 'float'", r"engine\.kernal; did you mean 'engine\.local\.kernel'"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, toml)


def test_a_section_that_is_no_table_is_named_also_when_the_environment_adds_to_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"serve"):
        load(tmp_path, "serve = 3", {"PORT": "0"})


def test_an_implementation_has_a_table_of_its_own(tmp_path: Path) -> None:
    toml = "[engine.local]\ngraphs = false\n[engine.vllm]\nurl = 'x'\n[learn.mine]\nstrength = 2\n"
    config = load(tmp_path, toml)
    assert config.engine.engine_options == {"graphs": False}, "that of the engine that was chosen"
    assert config.learn.algo_options == {}
    assert load(tmp_path, engine="vllm").engine.engine_options == {"url": "x"}
    assert load(tmp_path, engine="vllm", engine_options="url=y, n=2").engine.engine_options == {
        "url": "y",
        "n": "2",
    }
    env = {"OPENCLAW_RL_ALGO": "mine", "OPENCLAW_RL_ALGO_OPTIONS": "strength=3"}
    assert load(tmp_path, env=env).learn.algo_options == {"strength": "3"}
    again = to_environment(load(tmp_path, env=env))
    assert load_config({}, again).learn.algo_options == {"strength": "3"}
    with pytest.raises(ValueError, match="algo_options: 'strength' has no value"):
        load(tmp_path, algo_options="strength")
    with pytest.raises(ValueError, match=r"Binary has no setting 'x'; it has: .*rl_weight"):
        create_algorithm(load(tmp_path, algo="binary", algo_options="x=1").learn)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("top_k=9", "top_k is 9; it must be at most 8"),
        ("top_k=0", "top_k is 0; it must be at least 1"),
        ("gap_clip=0", "gap_clip is 0.0; it must be more than 0"),
        ("gap_clip=much", "gap_clip is 'much'; it must be a number"),
        ("hint_choice=sentence", "hint_choice is 'sentence'; it must be one of sequence, token"),
    ],
)
def test_an_option_has_bounds(tmp_path: Path, options: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        create_algorithm(load(tmp_path, algo="opd-topk", algo_options=options).learn)


def test_settings_that_were_every_algorithms_are_still_understood(tmp_path: Path) -> None:
    old = "[learn]\nalgo = 'hybrid'\nteacher_k = 3\nretell = false\nreward_baseline = false\n"
    learn = load(tmp_path / "a", old).learn
    assert learn.algo_options == {"teacher_k": 3, "retell": False}, "hybrid has no such baseline"
    made = create_algorithm(learn)
    assert isinstance(made, Hybrid)
    assert (made.teacher_k, made.retell) == (3, False)
    env = {
        "OPENCLAW_RL_TEACHER_K": "4",
        "OPENCLAW_RL_ENV_STEP_SCALE": "0.5",
        "OPENCLAW_RL_IMPORTANCE_CAP": "3",
    }
    learn = load(tmp_path / "b", old + "[learn.hybrid]\nteacher_k = 2\n", env).learn
    assert learn.algo_options == {"teacher_k": "4", "retell": False, "importance_cap": "3"}
    assert learn.env_algo_options == {"scale": "0.5", "importance_cap": "3"}
    learn = load(tmp_path / "c", old, env, teacher_k="5", algo_options="teacher_k=6").learn
    assert learn.algo_options["teacher_k"] == "6"
    assert load(tmp_path / "d", "[learn]\ngap_clip = 2.0\n").learn.algo_options == {}, (
        "hinted has no such gap"
    )


def test_settings_that_were_every_engine_s_and_trainer_s_are_still_understood(tmp_path: Path) -> None:
    toml = "[engine]\nnum_threads = 2\nkernel = 'native'\n[engine.local]\ncache_tokens = 9\n"
    toml += "[train]\ntrain_threads = 1\n"
    env = {"OPENCLAW_RL_KERNEL": "float", "OPENCLAW_RL_TRAIN_BASE": "int4"}
    config = load(tmp_path, toml, env, dtype="bf16")
    assert config.engine.engine_options == {
        "num_threads": 2, "kernel": "float", "cache_tokens": 9, "dtype": "bf16",
    }  # fmt: skip
    assert config.train.trainer_options == {"train_threads": 1, "train_base": "int4"}
    options = extended(LocalEngineOptions, config.engine, config.engine.engine_options)
    assert (options.num_threads, options.kernel, options.dtype) == (2, "float", "bf16")
    child = load_config({}, {**env, "OPENCLAW_RL_DTYPE": "fp32", **to_environment(config)})
    assert (child.engine, child.train) == (config.engine, config.train)


def test_a_flag_goes_before_the_options_in_a_variable(tmp_path: Path) -> None:
    env = {"OPENCLAW_RL_ENGINE_OPTIONS": "kernel=native,graphs=no"}
    engine = load(tmp_path, env=env, kernel="float").engine
    assert engine.engine_options == {"kernel": "float", "graphs": "no"}
    engine = load(tmp_path, env=env, kernel="float", engine_options="kernel=int4").engine
    assert engine.engine_options == {"kernel": "int4", "graphs": "no"}


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        (
            "",
            {"engine": "vllm", "kernel": "float"},
            "--kernel is a setting of --engine local, not of vllm; leave",
        ),
        ("", {"trainer": "tinker", "train_threads": "1"}, "--train-threads is a setting of --trainer local"),
        (
            "[engine]\nengine = 'my:Own'\ndtype = 'fp32'\n",
            {},
            r"dtype under \[engine\] .*move it to \[engine\.local\]",
        ),
    ],
)
def test_a_setting_of_another_engine_or_trainer_is_refused(
    tmp_path: Path, toml: str, flags: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, toml, **flags)
    variables = {"OPENCLAW_RL_KERNEL": "float", "OPENCLAW_RL_TRAIN_THREADS": "1"}
    config = load(tmp_path / "other", env=variables, engine="vllm", trainer="tinker")
    assert (config.engine.engine_options, config.train.trainer_options) == ({}, {}), "they only get a note"


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(ValueError, match=r"engine\.max_running is '0'; .*greater than or equal to 1"):
        load_config({"max_running": "0"}, {})


def test_leaf_names_are_unique_and_described() -> None:
    names = Counter(name for _, name, _ in fields())
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for _, name, field in fields() if not field.description] == []


def test_the_tree_is_frozen() -> None:
    config = load_config({}, {})
    with pytest.raises(ValueError, match="frozen"):
        config.serve.port = 1  # type: ignore[misc]


def test_no_setting_is_a_secret() -> None:
    assert not [name for _, name, _ in fields() if "key" in name or "secret" in name or name == "token"]


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"lora_targets": "attention, down_proj"}, None),
        ({"lora_targets": "q_proj,lm_head"}, "unknown lora target 'lm_head'; known: all-linear"),
    ],
)
def test_training_settings_are_checked_before_anything_is_trained(
    tmp_path: Path, flags: dict[str, Any], remedy: str | None
) -> None:
    if remedy is None:
        load(tmp_path, **flags)
        return
    with pytest.raises(ValueError, match=remedy):
        load(tmp_path, **flags)


@pytest.mark.parametrize(
    ("flags", "per_step", "replayed"),
    [
        ({}, 1, 0),
        ({"algo": "hybrid"}, 2, 4),
        ({"algo": "binary"}, 4, 0),
        ({"batch_size": 7, "replay": 0}, 7, 0),
        ({"algo": "opd", "batch_size": 3}, 3, 0),
    ],
)
def test_what_a_step_holds_depends_on_the_algorithm(
    tmp_path: Path, flags: dict[str, Any], per_step: int, replayed: int
) -> None:
    learn = load(tmp_path, **flags).learn
    assert step_size(learn, create_algorithm(learn).needs) == StepSize(per_step, replayed)


def test_replay_is_refused_where_examples_must_not_be_heard_twice(tmp_path: Path) -> None:
    learn = load(tmp_path, algo="binary", replay=2).learn
    with pytest.raises(ValueError, match="--replay is not for --algo binary"):
        step_size(learn, create_algorithm(learn).needs)
