"""A trainer over the weights of the engine on its GPU; here both are on a CPU, in one process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.engine.kernels import kernel_set
from openclaw_rl.engine.model import Decoder
from openclaw_rl.engine.sharing import _decoded, _encoded, base_weights
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.processes.parts import gpu_handles
from openclaw_rl.testing import ScriptedEngine, byte_tokenizer
from openclaw_rl.train.beside import Beside, model_over
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.types import Batch, Example, GpuOffer
from tests.networks import make_network
from tests.train.test_local import OPTIONS, gradients

CPU = torch.device("cpu")


def engine_weights(folder: Path, kernel: str = "float") -> dict[str, torch.Tensor]:
    return base_weights(Decoder(read_checkpoint(folder), CPU, torch.float32, kernel_set(kernel)))


def test_other_kernels_store_weights_that_cannot_be_shared(tiny_model: Path) -> None:
    assert engine_weights(tiny_model, "bf16") == {}


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_model_on_the_same_memory(family: str, tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = make_network(family, tmp_path, tie_word_embeddings=tied)
    weights = engine_weights(network)
    model = model_over(network, weights, torch.float32, CPU)
    own = AutoModelForCausalLM.from_pretrained(network, dtype=torch.float32)
    ids = torch.arange(3, 20)[None]
    for module in model.modules():
        module.packing = None
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(ids).logits, own(ids).logits, atol=1e-5, rtol=1e-4)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == weights[name].data_ptr()
        assert not parameter.requires_grad


def test_a_step_over_shared_weights(tiny_model: Path, ragged: list[Example]) -> None:
    weights = engine_weights(tiny_model)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    shared = LocalTrainer(
        tiny_model, OPTIONS, load_base=lambda *wanted: model_over(wanted[0], weights, *wanted[1:])
    )
    own = LocalTrainer(tiny_model, OPTIONS)
    for trainer in (shared, own):
        trainer.step(Batch(ragged), 0)
    for one, other in zip(gradients(shared), gradients(own), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())


def test_weights_of_another_model_are_refused(tiny_model: Path) -> None:
    weights = engine_weights(tiny_model)
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        other = {**weights, name: weights[name] + 1}
        with pytest.raises(ValueError, match="is not that of"):
            model_over(tiny_model, other, torch.float32, CPU)
    with pytest.raises(ValueError, match="shares no"):
        model_over(tiny_model, {"model.norm.weight": weights["model.norm.weight"]}, torch.float32, CPU)
    with pytest.raises(ValueError, match=r"not in torch\.bfloat16"):
        model_over(tiny_model, weights, torch.bfloat16, CPU)


def test_the_log_says_why_there_is_a_copy(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> GpuOffer:
        raise RuntimeError("no peers")

    assert Beside(fail).base(tiny_model, torch.float32, CPU) is None
    assert "its own copy of the base on the GPU: no peers" in caplog.text
    assert Beside(lambda: GpuOffer({}, 5, 0.9)).base(tiny_model, torch.float32, CPU) is None
    assert "a form of its own" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert Beside(lambda: None).base(tiny_model, torch.float32, CPU) is None
    assert not caplog.text


def test_users_come_first_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def num_live() -> int:
        asked.append(1)
        return 1 if len(asked) < 4 else 0

    synchronised: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronised.append(1))
    Beside(None, num_live, most_wait_s=60).wait_for_users()
    assert len(asked) == 4
    Beside(None, lambda: 1, most_wait_s=0.03).wait_for_users()
    assert len(synchronised) == 2
    Beside(None, lambda: 0).wait_for_users()
    assert len(synchronised) == 2


def test_handles_survive_json() -> None:
    import json

    handle: tuple[Any, ...] = (
        torch.Tensor, torch.Size([2, 3]), (3, 1), 0, torch.storage.TypedStorage, torch.bfloat16, 0,
        b"\x00\xff", 12, 0, False, b"name", 4, b"event", True,
    )  # fmt: skip
    again = tuple(_decoded(part) for part in json.loads(json.dumps([_encoded(part) for part in handle])))
    assert again == handle


def test_an_engine_without_a_gpu_shares_nothing() -> None:
    assert gpu_handles(ScriptedEngine(byte_tokenizer())) is None
