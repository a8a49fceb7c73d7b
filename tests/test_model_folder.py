"""What is read from a model folder without transformers' Auto classes is what these read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.model_folder import model_type, read_config, read_tokenizer
from openclaw_rl.testing import tiny_model

SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SCALED = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
FAMILIES = {
    "llama": lambda: LlamaConfig(**SMALL, architectures=["LlamaForCausalLM"]),
    "llama-scaled": lambda: LlamaConfig(**SMALL, architectures=["LlamaForCausalLM"], rope_parameters=SCALED),
    "qwen2": lambda: Qwen2Config(**SMALL, architectures=["Qwen2ForCausalLM"]),
    "qwen2-slides": lambda: Qwen2Config(
        **SMALL, architectures=["Qwen2ForCausalLM"], use_sliding_window=True, max_window_layers=0
    ),
    "qwen3": lambda: Qwen3Config(**SMALL, architectures=["Qwen3ForCausalLM"]),
    "mistral": lambda: MistralConfig(**SMALL, architectures=["MistralForCausalLM"]),
}
#: What a start builds; prints what it imported of that which it should not.
START = """
import sys
from pathlib import Path
from openclaw_rl.config import Config
from openclaw_rl.processes import parts
folder = Path(sys.argv[1])
config = Config.model_validate({"engine": {"model": str(folder), "device": "cpu"}})
engine = parts.build_engine(config, folder)
parts.build_renderer(config, folder).render([{"role": "user", "content": "Hi"}])
print(sorted({"torch._dynamo", "transformers.models.auto", "accelerate"} & set(sys.modules)))
"""


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    FAMILIES[request.param]().save_pretrained(tmp_path)
    return tmp_path


def left_out(folder: Path, *names: str) -> None:
    file = folder / "config.json"
    stated = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in stated.items() if name not in names}))


def test_a_config_says_what_transformers_reads(folder: Path) -> None:
    ours, theirs = read_config(folder), AutoConfig.from_pretrained(folder)
    names = ("architectures", "hidden_size", "head_dim", "rms_norm_eps", "rope_parameters", "vocab_size")
    names += ("max_position_embeddings", "num_key_value_heads", "tie_word_embeddings", "model_type")
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert model_type(folder) == theirs.model_type
    assert getattr(ours, "sliding_window", None) == getattr(theirs, "sliding_window", None)


@pytest.mark.parametrize(
    "name", ["head_dim", "num_key_value_heads", "tie_word_embeddings", "rope_parameters"]
)
def test_what_a_config_leaves_out_is_its_familys_default(folder: Path, name: str) -> None:
    left_out(folder, name)
    ours, theirs = read_config(folder), AutoConfig.from_pretrained(folder)
    assert getattr(ours, name, None) == getattr(theirs, name, None)


def test_rotary_frequencies_are_those_of_transformers(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    if not checkpoint.is_fast:
        assert checkpoint.inv_freq is None
        return
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder))
    assert checkpoint.inv_freq is not None
    assert torch.equal(checkpoint.inv_freq, theirs.inv_freq)
    assert checkpoint.rope_scale == theirs.attention_scaling


def test_the_default_models_tokenizer_is_the_one_transformers_chooses(model_path: Path) -> None:
    ours, theirs = read_tokenizer(model_path), AutoTokenizer.from_pretrained(model_path)
    for text in ("Hello, world! 12345", "<|im_start|>user\nHi<|im_end|>\n", "  déjà\tvu 日本 🙂\n\n"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    for name in ("eos_token_id", "chat_template", "added_tokens_decoder", "all_special_tokens"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_vocab() == theirs.get_vocab()


def test_a_start_imports_no_models_code(tmp_path: Path) -> None:
    """Nor what that imports: it takes two seconds, and memory for as long as the server runs."""
    done = subprocess.run(
        [sys.executable, "-c", START, str(tiny_model(tmp_path / "model"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
