"""``openclaw-rl policy`` on a data folder with versions that were really trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.capture.samples import policies
from openclaw_rl.commands.cli import main
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.policies import PolicyStore
from tests.train.versions import OPTIONS, Home


@dataclass(frozen=True)
class Made:
    model: Path
    trainer: LocalTrainer
    home: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """1 ─ 2 ─ 4 ─ 5, which serves; 3 was trained from 2 and rejected."""
    torch.set_num_threads(1)
    model, home = tiny_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("home")
    trainer = LocalTrainer(model, OPTIONS)
    data = Home(home, trainer)
    for passes in (True, True, False, True, True):
        data.step(passes)
    data.close()
    return Made(model, trainer, home)


@pytest.fixture
def home(made: Made, tmp_path: Path) -> Path:
    """One's own copy."""
    return Path(shutil.copytree(made.home, tmp_path / "home"))


@pytest.fixture
def data(made: Made, home: Path) -> Iterator[Home]:
    data = Home(home, made.trainer)
    yield data
    data.close()


Policy = Callable[..., str]


@pytest.fixture
def policy(made: Made, home: Path, capsys: pytest.CaptureFixture[str]) -> Policy:
    """What a command prints; a mistake is one line, given back as it is."""

    def run(*arguments: object, fails: bool = False) -> str:
        code = main(["policy", *map(str, arguments), "--home", str(home), "--model", str(made.model)])
        out, err = capsys.readouterr()
        assert code == (2 if fails else 0), err
        if not fails:
            return out.rstrip("\n")
        assert out == ""
        assert err.startswith("openclaw-rl: ")
        assert len(err.splitlines()) == 1
        return err.strip().removeprefix("openclaw-rl: ")

    return run


def table(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines()[1:]}


def statuses(policy: Policy) -> dict[int, str]:
    return {row["version"]: row["status"] for row in json.loads(policy("list", "--json"))["data"]}


# --- looking -------------------------------------------------------------------------------------


def test_the_list_is_a_table_or_json(policy: Policy) -> None:
    rows = table(policy("list"))
    assert list(rows) == ["5", "4", "3", "2", "1", "0"]
    assert rows["5"][1:4] == ["4", "serving", "1"]
    assert rows["5"][-1] == "passed"
    assert rows["3"][1:3] == ["2", "rejected"]
    assert rows["3"][-3:] == ["replies", "got", "worse"]
    assert rows["0"][:3] == ["0", "-", "retired"]
    assert statuses(policy) == {
        5: "serving",
        4: "retired",
        3: "rejected",
        2: "retired",
        1: "retired",
        0: "retired",
    }


def test_a_new_data_folder_has_the_base_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list", "--home", str(tmp_path / "new")]) == 0
    assert list(table(capsys.readouterr().out)) == ["0"]


def test_show_says_what_a_version_is_and_what_it_learned_from(policy: Policy, home: Path) -> None:
    shown = json.loads(policy("show", 4))
    assert (shown["version"], shown["parent"], shown["status"]) == (4, 2, "retired")
    assert shown["samples"] == ["t4"]
    assert shown["folder"] == str(home / "policies" / "4")
    assert shown["metrics"]["finite"]
    assert json.loads(policy("show", 0))["status"] == "retired"


def test_diff_compares_what_two_adapters_do(policy: Policy, home: Path) -> None:
    found = json.loads(policy("diff", 1, 4, "--json"))
    assert len(found["modules"]) == 14  # two layers of seven
    by_name = {row["module"]: row for row in found["modules"]}
    row = by_name["model.layers.1.mlp.up_proj"]
    before, after = (adapter_change(home / "policies" / n, row["module"]) for n in "14")
    assert row["norm"] == pytest.approx(float((after - before).norm()), rel=1e-5)
    assert row["share"] == pytest.approx(row["norm"] / float(before.norm()), rel=1e-5)
    assert found["norm"] == pytest.approx(sum(r["norm"] ** 2 for r in found["modules"]) ** 0.5)
    text = policy("diff", 1, 4)
    assert text.startswith(f"norm of the whole change: {found['norm']:.4f}\n")
    assert len(text.splitlines()) == 12


def adapter_change(folder: Path, module: str) -> torch.Tensor:
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.{module}.lora_{x}.weight"].double() for x in "AB")
    return OPTIONS.lora_alpha / OPTIONS.lora_rank * b @ a


def test_diff_with_the_base_and_with_itself(policy: Policy) -> None:
    from_base = json.loads(policy("diff", 0, 2, "--json"))
    assert from_base["norm"] > 0
    assert {row["share"] for row in from_base["modules"]} == {None}
    assert policy("diff", 0, 2).splitlines()[2].endswith("new")
    assert policy("diff", 0, 0) == "norm of the whole change: 0.0000"
    assert json.loads(policy("diff", 2, 2, "--json"))["norm"] == pytest.approx(0, abs=1e-6)


# --- choosing ------------------------------------------------------------------------------------


def test_promote_serves_a_version_and_says_why(policy: Policy) -> None:
    assert policy("promote", 2) == "version 2 serves new requests from now on, instead of version 5"
    assert statuses(policy)[2] == "serving"
    assert statuses(policy)[5] == "retired"
    assert policy("list").splitlines()[4].endswith("passed; promoted by hand")
    assert policy("promote", 2) == "version 2 serves already"
    assert policy("promote", 0) == "version 0 serves new requests from now on, instead of version 2"
    assert statuses(policy)[0] == "serving"


def test_a_rejected_version_may_be_promoted_knowingly(policy: Policy) -> None:
    assert policy("promote", 3).endswith("although it had not passed its checks")
    assert statuses(policy)[3] == "serving"


def test_a_version_in_the_making_is_not_promoted(policy: Policy, data: Home) -> None:
    version = data.claim()
    assert "still being trained or checked" in policy("promote", version, fails=True)
    data.train(version)
    assert "still being trained or checked" in policy("promote", version, fails=True)


@pytest.mark.parametrize("metrics", ['{"replay": ["t1"]}', '{"failures": 1, "problem": "no memory"}'])
def test_a_version_in_the_making_is_listed(policy: Policy, data: Home, metrics: str) -> None:
    """What it replays is known before its loss, and that its step failed."""
    version = data.claim()
    with data.policy_ledger.db.begin() as connection:
        connection.execute(policies.update().where(policies.c.version == version).values(metrics=metrics))
    assert table(policy("list"))[str(version)][2] == "training"


def test_weights_that_are_no_numbers_are_not_promoted(policy: Policy, data: Home) -> None:
    version = data.claim()
    data.train(version)
    with data.policy_ledger.db.begin() as connection:
        connection.execute(policies.update().values(metrics='{"finite": false, "loss": 0.0}'))
    data.policy_ledger.reject(version, {"passed": False, "reason": "not finite", "checks": []})
    assert "not finite; choose another" in policy("promote", version, fails=True)


def test_rollback_goes_to_the_parent_or_to_a_named_version(policy: Policy) -> None:
    assert policy("rollback") == "version 4 serves new requests from now on, instead of version 5"
    assert policy("rollback").startswith("version 2 serves")  # past 3, which was rejected
    policy("promote", 5)
    assert policy("rollback", 1).startswith("version 1 serves")
    assert "rolled back by hand from version 5" in policy("list")
    assert policy("rollback").startswith("version 0 serves")
    assert policy("rollback", fails=True) == (
        "the base is being served and nothing came before it; "
        "to serve a version: openclaw-rl policy promote N"
    )


def test_rollback_goes_back_only(policy: Policy) -> None:
    policy("promote", 2)
    for version in (2, 4):
        problem = policy("rollback", version, fails=True)
        assert problem.startswith(f"version {version} is not before version 2")
        assert problem.endswith(f"openclaw-rl policy promote {version}")


# --- what may be wrong ---------------------------------------------------------------------------


def test_unknown_versions(policy: Policy, tmp_path: Path) -> None:
    unknown = "there is no policy version 9; 'openclaw-rl policy list' shows those there are"
    for command in (("show", 9), ("diff", 1, 9), ("promote", 9), ("export", 9, "--to", tmp_path / "x")):
        assert policy(*command, fails=True) == unknown
    assert "is not before" in policy("rollback", 9, fails=True)


def test_the_number_of_versions(policy: Policy) -> None:
    for action in ("show", "promote", "export"):
        expected = f"policy {action} needs one version, such as: openclaw-rl policy {action} 3"
        assert policy(action, fails=True) == expected
        assert policy(action, 1, 2, fails=True) == expected
    assert "needs one version" in policy("rollback", 1, 2, fails=True)
    assert "needs two versions" in policy("diff", 1, fails=True)


@pytest.mark.parametrize("lost", [".", "manifest.json", "adapter_model.safetensors"])
def test_missing_files(policy: Policy, home: Path, tmp_path: Path, lost: str) -> None:
    path = home / "policies" / "4" / lost
    if lost == ".":
        shutil.rmtree(path)
    else:
        path.unlink()
    for command in (("promote", 4), ("rollback",), ("diff", 4, 5), ("export", 4, "--to", tmp_path / "x")):
        problem = policy(*command, fails=True)
        if lost == "adapter_model.safetensors":
            assert f"{home / 'policies' / '4'}" in problem
            assert "is missing" in problem
        else:
            assert problem.startswith("there are no weights of policy version 4")
        assert "openclaw-rl policy list" in problem
    assert statuses(policy)[5] == "serving"
    assert table(policy("list"))["4"][6] == "-"
    assert json.loads(policy("show", 4))["version"] == 4


# --- export --------------------------------------------------------------------------------------


def test_export_writes_what_was_asked_for(policy: Policy, tmp_path: Path) -> None:
    assert policy("export", 4, "--to", tmp_path / "a") == f"version 4 exported to {tmp_path / 'a'}"
    names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert {file.name for file in (tmp_path / "a").iterdir()} == names
    policy("export", 4, "--format", "merged", "--to", tmp_path / "deep" / "b")
    assert {file.name for file in (tmp_path / "deep" / "b").iterdir()} == {
        "config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_export_does_not_mix_with_what_is_there(policy: Policy, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    policy("export", 4, "--to", target)  # an empty folder is as good as none
    before = {file: file.read_bytes() for file in target.iterdir()}
    for form in ("peft", "merged"):
        problem = policy("export", 5, "--format", form, "--to", target, fails=True)
        assert problem == f"{target} is there and not empty; choose another folder, or remove it first"
    assert {file: file.read_bytes() for file in target.iterdir()} == before
    file = tmp_path / "file.gguf"
    file.write_text("mine")
    for form in ("peft", "merged", "gguf"):
        assert "remove it first" in policy("export", 5, "--format", form, "--to", file, fails=True)
    assert file.read_text() == "mine"


def test_export_needs_a_target_and_a_version_of_its_own(policy: Policy, tmp_path: Path) -> None:
    assert policy("export", 4, fails=True) == "policy export needs a place to write to: --to FOLDER"
    assert policy("export", 4, "--format", "gguf", fails=True).endswith("--to FILE.gguf")
    assert "itself" in policy("export", 0, "--to", tmp_path / "x", fails=True)
    problem = policy("export", 4, "--format", "gguf", "--to", tmp_path / "x", fails=True)
    assert problem.endswith(f"--to {tmp_path / 'x'}.gguf")


@pytest.mark.parametrize("num_layers", [1, 3])
def test_export_with_another_model_names_the_one_it_needs(
    made: Made, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], num_layers: int
) -> None:
    other = other_model(made.model, tmp_path / "other", num_layers)
    for form, target in (("merged", tmp_path / "a"), ("gguf", tmp_path / "a.gguf")):
        command = ["policy", "export", "4", "--format", form, "--to", str(target)]
        assert main([*command, "--home", str(home), "--model", str(other)]) == 2
        assert "with --model" in capsys.readouterr().err
    assert list(tmp_path.glob("a/*")) == []
    assert list(tmp_path.glob("*.gguf*")) == []


def other_model(model: Path, folder: Path, num_layers: int) -> Path:
    """Of the same width; digits apart, so that it could be a GGUF."""
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(model, num_hidden_layers=num_layers)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    return folder


# --- prune ---------------------------------------------------------------------------------------


def on_disk(home: Path) -> list[int]:
    store = PolicyStore(home / "policies")
    return [version for version in range(1, 9) if store.has_weights(version)]


def test_prune_keeps_the_last_of_the_serving_line(policy: Policy, home: Path) -> None:
    assert policy("prune") == "removed the files of version 3: 0.1 MB freed"
    assert on_disk(home) == [1, 2, 4, 5]
    assert policy("prune", "--keep", 3).startswith("removed the files of version 1: ")
    assert on_disk(home) == [2, 4, 5]
    assert policy("prune", "--keep", 3) == "nothing to remove"
    assert list(statuses(policy)) == [5, 4, 3, 2, 1, 0]
    assert json.loads(policy("show", 1))["samples"] is None
    assert table(policy("list"))["1"][2] == "retired"


def test_prune_keeps_what_can_be_rolled_back_to(policy: Policy, home: Path) -> None:
    policy("promote", 2)
    policy("prune", "--keep", 1)
    assert on_disk(home) == [1, 2]
    policy("rollback")
    assert statuses(policy)[1] == "serving"


@pytest.mark.parametrize("keep", [0, -3])
def test_prune_never_removes_all(policy: Policy, home: Path, keep: int) -> None:
    assert "--keep 1 or more" in policy("prune", f"--keep={keep}", fails=True)
    assert on_disk(home) == [1, 2, 3, 4, 5]


def test_prune_leaves_a_step_in_progress_alone(policy: Policy, data: Home, home: Path) -> None:
    version = data.claim()  # from 5
    data.train(version)
    policy("promote", 1)
    assert policy("prune").startswith("removed the files of version 2, 3, 4: ")
    assert on_disk(home) == [1, 5, version]


def test_prune_with_the_base_serving(policy: Policy, home: Path) -> None:
    policy("promote", 0)
    assert policy("prune").startswith("removed the files of version 1, 2, 3, 4, 5: ")
    assert on_disk(home) == []


# --- all weights ---------------------------------------------------------------------------------


def test_a_version_of_all_weights(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM

    home = tmp_path / "full"
    home.mkdir()
    data = Home(home, LocalTrainer(made.model, replace(OPTIONS, finetune="full")))
    data.step()
    data.close()

    def run(*arguments: Any) -> tuple[int, str]:
        code = main(["policy", *map(str, arguments), "--home", str(home), "--model", str(made.model)])
        return code, capsys.readouterr().err

    code, problem = run("export", 1, "--to", tmp_path / "peft")
    assert code == 2
    assert problem == (
        "openclaw-rl: this version was trained with all weights and has no adapter; use --format merged\n"
    )
    assert run("export", 1, "--format", "merged", "--to", tmp_path / "merged")[0] == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    trained = AutoModelForCausalLM.from_pretrained(home / "policies" / "1")
    for name, value in trained.state_dict().items():
        assert torch.equal(merged.state_dict()[name], value)
    assert merged.config.use_cache
    assert "only adapters can be compared" in run("diff", 0, 1)[1]
