"""One training step of every family: the gradients of a plain loop over transformers and PEFT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.lora import target_modules
from openclaw_rl.train.losses import Surrogate
from openclaw_rl.types import Batch, Example
from tests.networks import FAMILIES, make_network
from tests.train.test_local import OPTIONS, gradients, plain_logprobs


def plain_gradients(network: Path, items: list[Example]) -> list[torch.Tensor]:
    reference = LocalTrainer(network, OPTIONS)
    reference._model.base_model.model.set_attn_implementation("eager")
    for item in items:
        reference._packing.describe([len(item.prompt_ids) + len(item.reply_ids)])
        new = plain_logprobs(reference._model, item)
        loss = Surrogate()(new, torch.from_numpy(item.old_NK), torch.from_numpy(item.signal_NK))
        (loss.mean() / len(items)).backward()
    return gradients(reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_has_the_gradients_of_a_plain_loop(family: str, ragged: list[Example], tmp_path: Path) -> None:
    network = make_network(family, tmp_path)
    expected = plain_gradients(network, ragged)
    # One layer's activations are kept, the others' computed again.
    trainer = LocalTrainer(network, replace(OPTIONS, micro_batch_tokens=128, checkpoint_tokens=45))
    report = trainer.step(Batch(ragged), 0)
    assert report.finite
    assert sum(float(g.norm()) for g in expected) > 0
    for got, want in zip(gradients(trainer), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-3)


def test_layers_of_a_mixture(tmp_path: Path) -> None:
    """Attention gets adapters, experts get none, and who asks for those is told so."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(make_network("Qwen3MoeForCausalLM", tmp_path))
    assert target_modules(base, "all-linear") == ["k_proj", "o_proj", "q_proj", "v_proj"]
    with pytest.raises(ValueError, match="of a mixture of experts, attention can be trained"):
        target_modules(base, "mlp")


def test_a_model_that_cannot_be_packed_is_not_trained(tmp_path: Path) -> None:
    network = make_network("Lfm2ForCausalLM", tmp_path, layer_types=["conv", "full_attention", "conv"])
    with pytest.raises(ValueError, match="cannot train Lfm2ForCausalLM"):
        LocalTrainer(network, OPTIONS)
