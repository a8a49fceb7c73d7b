"""What other programs load: the same log-probs as what was trained, and resuming after state was freed."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.models import DEFAULT_MODEL, convert_gguf
from openclaw_rl.testing import tiny_model as model_with_tokenizer
from openclaw_rl.train.export import export_merged, export_peft, filling, merged_model
from openclaw_rl.train.gguf import export_gguf
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.packed import pack
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Batch, Example, Weights
from tests.train.conftest import make_item
from tests.train.versions import OPTIONS, plain_logprobs

ITEM = make_item(7, 20, 12)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_with_tokenizer(tmp_path_factory.mktemp("base"))


def trained(base: Path, folder: Path, options: LocalTrainerOptions = OPTIONS, steps: int = 2) -> LocalTrainer:
    """Steps large enough to see; the last one is written as version 1. The trainer has what is stored."""
    trainer = LocalTrainer(base, options)
    for number in range(steps):
        trainer.step(Batch([make_item(number, 15, 9)]), 0)
    PolicyStore(folder).write(1, lambda work: trainer.save(work, {"seen": steps}), {"version": 1})
    trainer._masters.put(trainer._saved_weights(folder / "1"))
    return trainer


def trainer_logprobs(trainer: LocalTrainer, item: Example) -> torch.Tensor:
    [row] = pack([item], 64, trainer.device)
    return trainer._logprobs(row).detach()


@pytest.fixture
def version(base: Path, tmp_path: Path) -> Path:
    trained(base, tmp_path / "policies")
    return tmp_path / "policies" / "1"


def load(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


# --- PEFT and merged -----------------------------------------------------------------------------


def test_a_peft_export_loads_with_peft_and_says_the_same(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = trained(base, tmp_path)
    export_peft(tmp_path / "1", tmp_path / "out")
    got = plain_logprobs(PeftModel.from_pretrained(load(base), tmp_path / "out"), ITEM)
    torch.testing.assert_close(got, trainer_logprobs(trainer, ITEM), atol=2e-5, rtol=0)
    assert (got - plain_logprobs(load(base), ITEM)).abs().max() > 0.01


def test_a_merged_export_needs_transformers_only(base: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    trainer = trained(base, tmp_path)
    export_merged(tmp_path / "1", base, tmp_path / "out")
    got = plain_logprobs(load(tmp_path / "out"), ITEM)
    torch.testing.assert_close(got, trainer_logprobs(trainer, ITEM), atol=1e-4, rtol=0)
    text = "<|im_start|>user\nIn 2024, naïve?<|im_end|>"
    here, there = (
        AutoTokenizer.from_pretrained(path)(text)["input_ids"] for path in (base, tmp_path / "out")
    )
    assert here == there
    for file in (tmp_path / "out").glob("*.json"):
        assert str(base) not in file.read_text()


def test_all_weights_merge_to_themselves(base: Path, tmp_path: Path) -> None:
    trainer = trained(base, tmp_path, replace(OPTIONS, finetune="full"))
    export_merged(tmp_path / "1", base, tmp_path / "out")
    got = plain_logprobs(load(tmp_path / "out"), ITEM)
    torch.testing.assert_close(got, trainer_logprobs(trainer, ITEM), atol=2e-5, rtol=0)
    with pytest.raises(ValueError, match="--format merged"):
        export_peft(tmp_path / "1", tmp_path / "peft")
    assert not (tmp_path / "peft").exists()


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with filling(tmp_path / "out") as work:
            (work / "half").write_text("…")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert list((tmp_path / "out").iterdir()) == []
    with filling(tmp_path / "out") as work:
        (work / "whole").write_text("…")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["whole"]


# --- GGUF ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_gguf_holds_the_merged_weights_and_the_tokenizer(shallow_model: Path, tmp_path: Path) -> None:
    """A few layers of the default model. Read back by another's code: names, rows, splitting, template."""
    from transformers import AutoTokenizer

    trainer = LocalTrainer(shallow_model, replace(OPTIONS, name=DEFAULT_MODEL))
    with torch.no_grad():
        for name, parameter in trainer._named:
            if "lora_B" in name:  # nothing needs to be learned for it to be another model
                parameter.normal_(std=0.02)
    PolicyStore(tmp_path).write(1, lambda work: trainer.save(work, {}), {"version": 1})
    export_gguf(tmp_path / "1", shallow_model, tmp_path / "out.gguf", "ours")
    convert_gguf(tmp_path / "out.gguf", tmp_path / "back")

    before, after = merged_model(tmp_path / "1", shallow_model), load(tmp_path / "back")
    assert before.state_dict().keys() == after.state_dict().keys()
    for name, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], value, rtol=2**-10, atol=1e-7)
    torch.testing.assert_close(plain_logprobs(after, ITEM), plain_logprobs(before, ITEM), atol=0.05, rtol=0)
    for key in ("max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id", "rope_parameters"):
        assert getattr(after.config, key) == pytest.approx(getattr(before.config, key))

    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (shallow_model, tmp_path / "back"))
    for text in (
        "<|im_start|>user\nHi<|im_end|>\n",
        "In 2024: 1234567, weren't there?",
        "Grüße, 你好 🎉\t  x",
    ):
        assert theirs(text)["input_ids"] == ours(text)["input_ids"]
    assert theirs.chat_template == ours.chat_template
    assert theirs.all_special_ids == ours.all_special_ids


DIGITS_APART = [
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]


@pytest.fixture
def splits_digits(base: Path, tmp_path: Path) -> Path:
    """The small model with the default model's way of splitting text."""
    folder = Path(shutil.copytree(base, tmp_path / "splits"))
    amend(folder / "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": DIGITS_APART})
    return folder


def amend(file: Path, **facts: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


def test_a_gguf_tells_control_tokens_and_splitting(
    splits_digits: Path, version: Path, tmp_path: Path
) -> None:
    import gguf

    export_gguf(version, splits_digits, tmp_path / "new" / "out.gguf", "tiny, version 1")
    reader = gguf.GGUFReader(tmp_path / "new" / "out.gguf")

    def field(name: str) -> Any:
        found = reader.get_field(name)
        assert found is not None, name
        return found.contents()

    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    assert kinds[tokens.index("<|im_end|>")] == gguf.TokenType.CONTROL
    assert kinds[tokens.index("<think>")] == gguf.TokenType.USER_DEFINED
    assert kinds[tokens.index("a")] == gguf.TokenType.NORMAL
    assert field("tokenizer.ggml.eos_token_id") == tokens.index("<|im_end|>")
    assert field("tokenizer.ggml.pre") == "smollm"
    assert field("tokenizer.ggml.add_bos_token") is False
    assert field("general.name") == "tiny, version 1"
    [norm] = [t for t in reader.tensors if t.name == "output_norm.weight"]
    assert norm.data.dtype == np.float32
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["out.gguf"]


@pytest.mark.parametrize(
    ("file", "facts", "problem"),
    [
        ("config.json", {"model_type": "qwen2"}, "models of type qwen2"),
        (
            "config.json",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "stretched",
        ),
        ("tokenizer.json", {"pre_tokenizer": None}, "splits text"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "tokenizer cannot"),
    ],
)
def test_what_cannot_be_a_gguf_names_the_way_round(
    splits_digits: Path, version: Path, tmp_path: Path, file: str, facts: dict[str, Any], problem: str
) -> None:
    amend(splits_digits / file, **facts)
    with pytest.raises(ValueError, match=f"{problem}.*--format merged.*convert_hf_to_gguf.py"):
        export_gguf(version, splits_digits, tmp_path / "out.gguf", "x")
    assert list(tmp_path.glob("*.gguf*")) == []


def test_llama_3_splits_its_own_way() -> None:
    from openclaw_rl.train.gguf import _splitting

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, level]}
    assert _splitting({"pre_tokenizer": steps}) == "llama-bpe"


# --- going on from a version -----------------------------------------------------------------------


@pytest.mark.parametrize("finetune", ["lora", "full"])
def test_training_goes_on_after_the_state_was_freed(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, finetune: str
) -> None:
    options = replace(OPTIONS, finetune=finetune, average_decay=0.5)
    before = trained(base, tmp_path, options)
    PolicyStore(tmp_path).forget(1, only_state=True)
    trainer = LocalTrainer(base, options)
    trainer.step(Batch([ITEM]), 0)
    with caplog.at_level(logging.WARNING, logger="openclaw_rl"):
        trainer.resume(Weights.in_folder(1, tmp_path / "1"))
    assert caplog.messages == ["version 1 is trained on with a new optimizer: its own was freed"]
    assert trainer._average is not None
    for old, new, average in zip(before._parameters, trainer._parameters, trainer._average, strict=True):
        assert torch.equal(old, new)
        assert torch.equal(old, average)
    assert trainer.state == {}
    assert trainer._optimizer.state_dict()["state"] == {}
    assert trainer.step(Batch([ITEM]), 1).finite


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lora_rank": 8}, "--lora-rank 4, not 8"),
        ({"lora_alpha": 16}, "--lora-alpha 8, not 16"),
        ({"finetune": "full"}, "--finetune lora, not full"),
        ({"name": "other"}, "--model tiny, not other"),
    ],
)
@pytest.mark.parametrize("freed", [False, True])
def test_a_version_of_another_kind_is_not_gone_on_from(
    base: Path, version: Path, change: dict[str, Any], problem: str, freed: bool
) -> None:
    if freed:
        PolicyStore(version.parent).forget(1, only_state=True)
    trainer = LocalTrainer(base, replace(OPTIONS, **change))
    with pytest.raises(
        ValueError, match=f"version 1 was trained with {problem}.*openclaw-rl policy promote 0"
    ):
        trainer.resume(Weights.in_folder(1, version))
    trainer.resume(None)
    assert trainer.step(Batch([ITEM]), 0).finite


def test_nor_is_one_of_another_model_or_without_weights(tiny_model: Path, version: Path) -> None:
    trainer = LocalTrainer(tiny_model, OPTIONS)
    with pytest.raises(ValueError, match=r"another model.*--model.*openclaw-rl policy promote 0"):
        trainer.resume(Weights.in_folder(1, version))
    PolicyStore(version.parent).forget(1, only_state=False)
    with pytest.raises(ValueError, match=r"weights of version 1 are gone.*openclaw-rl policy promote 0"):
        trainer.resume(Weights.in_folder(1, version))
