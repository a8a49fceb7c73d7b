"""What a model takes is computed from its shapes; no weight is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.commands.doctor import check_fit, print_doctor
from openclaw_rl.commands.fit import Machine, describe, fit
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.sizes import size_of
from tests.networks import make_network


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_network("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("network"))
    (folder / "tokenizer.json").write_text("{}")  # a folder without one is no model's
    return folder


def test_bytes_by_use(network: Path) -> None:
    size, checkpoint = size_of(network), read_checkpoint(network)
    cpu, card = fit(checkpoint, size, "cpu"), fit(checkpoint, size, "cuda")
    cache = 2 * 3 * 2 * 16 * 4 * 8192
    assert cpu.serving == 4 * size.num_parameters + cache
    assert card.serving == cpu.serving / 2
    half = fit(checkpoint, replace(size, largest_dtype="BF16"), "cpu")
    mapped_once = half.adapters - cpu.adapters
    assert mapped_once == 4 * size.num_parameters, "files in fp32 are mapped, once for both processes"
    assert cpu.read_per_token == 4 * size.num_active < 4 * size.num_parameters
    assert cpu.full > 16 * size.num_parameters


def test_a_model_that_fits_and_one_that_does_not(network: Path) -> None:
    needed = fit(read_checkpoint(network), size_of(network), "cpu")
    roomy = describe(network, Machine("cpu", 1e12, 1e10))
    assert roomy[0]
    assert not roomy[2]
    assert "general path" in roomy[3]
    assert f"at most {1e10 / needed.read_per_token:.3g} tokens/s" in roomy[3]
    assert "(computed)" in roomy[1]
    only_serving = describe(network, Machine("cpu", needed.serving / 0.89, 1e10))
    assert only_serving[0]
    assert "without learning" in only_serving[2]
    small = describe(network, Machine("cpu", needed.serving, 1e10))
    assert not small[0]
    assert "smaller model" in small[2]


def test_the_doctor_says_so(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = check_fit(str(network), tmp_path)
    assert print_doctor([check]) == 0
    assert "GB/s (measured now)" in capsys.readouterr().out
    assert "not known before it is here" in check_fit("Qwen/Qwen3-4B", tmp_path).detail
