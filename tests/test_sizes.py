"""Training's defaults follow the model's size and what is trained."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from openclaw_rl.settings import TrainConfig
from openclaw_rl.sizes import DEFAULTS, Size, defaults_for, defaults_of, size_of, sized


def write_header(folder: Path, file_name: str, *shape: int, name: str = "w") -> None:
    """A file of weights, as far as its size goes: nothing behind the header takes room on the disk."""
    count = 2
    for length in shape:
        count *= length
    header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, count]}}).encode()
    with (folder / file_name).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + count)


def test_all_files_count(tmp_path: Path) -> None:
    write_header(tmp_path, "model-00001-of-00002.safetensors", 1000, 3)
    write_header(tmp_path, "model-00002-of-00002.safetensors", 500)
    assert size_of(tmp_path) == Size(3500, 3500, "BF16")


def test_a_token_takes_what_it_is_multiplied_by(tmp_path: Path) -> None:
    config = {"text_config": {"num_experts": 8, "num_experts_per_tok": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_header(tmp_path, "a.safetensors", 1000, name="model.layers.0.mlp.experts.gate_up_proj")
    write_header(tmp_path, "b.safetensors", 70, name="model.layers.0.self_attn.q_proj.weight")
    write_header(tmp_path, "c.safetensors", 300, name="model.visual.patch_embed.weight")
    write_header(tmp_path, "d.safetensors", 20, name="model.embed_tokens.weight")
    assert size_of(tmp_path) == Size(1390, 250 + 70 + 20, "BF16")
    write_header(tmp_path, "e.safetensors", 20, name="lm_head.weight")
    assert size_of(tmp_path) == Size(1410, 250 + 70 + 20, "BF16")


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="safetensors"):
        size_of(tmp_path)


@pytest.mark.parametrize(
    ("millions", "finetune", "rate"),
    [
        (135, "lora", 1e-3),
        (135, "full", 5e-5),
        (4000, "lora", 2e-4),
        (4000, "full", 1e-5),
    ],
)
def test_by_size_and_method(tmp_path: Path, millions: int, finetune: str, rate: float) -> None:
    write_header(tmp_path, "model.safetensors", millions, 1_000_000)
    settings = sized(TrainConfig(finetune=finetune), tmp_path)  # type: ignore[arg-type]
    assert settings.learning_rate == rate


def test_what_was_set_stays(tmp_path: Path) -> None:
    write_header(tmp_path, "model.safetensors", 10)
    assert defaults_of(tmp_path).micro_batch_tokens == 1024
    assert sized(TrainConfig(), tmp_path / "elsewhere").learning_rate == DEFAULTS[-1].lora_rate
    stated = TrainConfig(learning_rate=3e-3)
    assert sized(stated, tmp_path / "absent") is stated


def test_larger_models_take_smaller_steps() -> None:
    rows = [defaults_for(n * 10**9) for n in (0, 1, 4, 30)]
    assert list(DEFAULTS) == rows
    for rates in ([row.lora_rate for row in rows], [row.full_rate for row in rows]):
        assert rates == sorted(rates, reverse=True)
    assert all(row.full_rate < row.lora_rate for row in rows)
