"""Fused layers give the gradients of transformers and PEFT, for every family that has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.engine.frozen import int4_linear
from openclaw_rl.packing import Packing
from openclaw_rl.train.fused import FusedLayer, fuse, unfuse
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.losses import Surrogate
from openclaw_rl.train.memory import Kept, LayerBytes, longest_row, what_fits
from openclaw_rl.train.packed import HalfHead, Head
from openclaw_rl.train.packed import logprobs as head_logprobs
from openclaw_rl.train.trial import fused_layers
from openclaw_rl.types import Batch, Example
from tests.networks import make_network
from tests.train.conftest import make_item
from tests.train.test_local import OPTIONS, gradients, plain_logprobs

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
PACKED = replace(OPTIONS, micro_batch_tokens=128)


def make_trainer(network: Path, **options: Any) -> LocalTrainer:
    """With an adapter that changes something: in a new one, B is 0 and A gets no gradient."""
    trainer = LocalTrainer(network, replace(PACKED, **options))
    for n, (name, parameter) in enumerate(trainer._named):
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n))
            parameter.data.copy_(noise * 0.05)
    return trainer


def fused_trainer(network: Path, **options: Any) -> LocalTrainer:
    trainer = make_trainer(network, **options)
    assert fuse(trainer._decoder, trainer._packing)
    return trainer


def plain_gradients(trainer: LocalTrainer, items: list[Example]) -> list[torch.Tensor]:
    """Transformers and PEFT, one sample at a time."""
    trainer._model.base_model.model.set_attn_implementation("eager")
    for item in items:
        trainer._packing.describe([len(item.prompt_ids) + len(item.reply_ids)])
        new = plain_logprobs(trainer._model, item)
        loss = Surrogate()(new, torch.from_numpy(item.old_NK), torch.from_numpy(item.signal_NK))
        (loss.mean() / len(items)).backward()
    return gradients(trainer)


def close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert sum(float(g.norm()) for g in expected) > 0
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("keeps_mlp", [True, False])
def test_gradients_of_a_plain_loop(
    family: str, keeps_mlp: bool, ragged: list[Example], tmp_path: Path
) -> None:
    extra = {"sliding_window": None} if family == "MistralForCausalLM" else {}
    network = make_network(family, tmp_path, **extra)
    expected = plain_gradients(make_trainer(network), ragged)
    # Some layers' activations are kept, the others' computed again.
    trainer = make_trainer(network, checkpoint_tokens=45)
    fused = fuse(trainer._decoder, trainer._packing)
    assert fused
    for layer in fused:
        layer.keeps_mlp = keeps_mlp
    assert trainer.step(Batch(ragged), 0).finite
    close(gradients(trainer), expected)


def test_a_shared_prefix(tiny_model: Path) -> None:
    items = [make_item(n, 30, 4 + 3 * n) for n in range(4)]
    for item in items:
        item.prompt_ids[:20] = items[0].prompt_ids[:20]
    plain, fused = (f(tiny_model, micro_batch_tokens=256) for f in (make_trainer, fused_trainer))
    plain.step(Batch(items), 0)
    report = fused.step(Batch(items), 0)
    assert report.num_tokens == sum(len(i.prompt_ids) + len(i.reply_ids) - 1 for i in items) - 3 * 20
    close(gradients(fused), gradients(plain))


@pytest.mark.parametrize("targets", ["attention", "mlp", "q_proj,v_proj,down_proj"])
def test_some_layers_have_no_adapter(targets: str, ragged: list[Example], tiny_model: Path) -> None:
    plain = make_trainer(tiny_model, lora_targets=targets)
    fused = fused_trainer(tiny_model, lora_targets=targets)
    for trainer in (plain, fused):
        trainer.step(Batch(ragged), 0)
    close(gradients(fused), gradients(plain))


def test_a_kl_to_the_base_runs_without_adapters(ragged: list[Example], tiny_model: Path) -> None:
    plain = make_trainer(tiny_model, kl_coefficient=0.5)
    fused = fused_trainer(tiny_model, kl_coefficient=0.5)
    for trainer in (plain, fused):
        for _ in range(2):  # the first step makes a difference between the two
            trainer.step(Batch(ragged), 0)
    close(gradients(fused), gradients(plain))


def test_a_base_of_four_bits(ragged: list[Example], tiny_model: Path) -> None:
    options = replace(PACKED, train_base="int4")
    plain, fused = (LocalTrainer(tiny_model, options, int4_linear) for _ in range(2))
    assert fuse(fused._decoder, fused._packing)
    for trainer in (plain, fused):
        trainer.step(Batch(ragged), 0)
    for one, other in zip(gradients(fused), gradients(plain), strict=True):
        # On a CPU the plain one multiplies with the engine's kernel, which rounds its inputs.
        torch.testing.assert_close(one, other, atol=1e-3, rtol=2e-2)


def test_saves_less(tiny_model: Path) -> None:
    plain, fused = LocalTrainer(tiny_model, PACKED), fused_trainer(tiny_model)
    assert fused._activations.layer_bytes < 0.7 * plain._activations.layer_bytes


def test_weights_keep_their_names_and_values(tiny_model: Path) -> None:
    trainer = LocalTrainer(tiny_model, PACKED)
    before = {name: value.clone() for name, value in trainer._model.state_dict().items()}
    fuse(trainer._decoder, trainer._packing)
    after = trainer._model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_other_families_stay_as_they_are(tmp_path: Path) -> None:
    trainer = LocalTrainer(make_network("Gemma2ForCausalLM", tmp_path), PACKED)
    assert fuse(trainer._decoder, Packing()) == []
    assert "forward" not in vars(trainer._decoder.layers[0])


def test_unfuse(tiny_model: Path) -> None:
    trainer = fused_trainer(tiny_model)
    unfuse(trainer._decoder)
    assert "forward" not in vars(trainer._decoder.layers[0])


def test_a_trial_accepts_what_computes_the_same(tiny_model: Path) -> None:
    trainer = make_trainer(tiny_model)
    assert fused_layers(trainer._decoder, trainer._packing, trainer._parameters)


def test_a_trial_rejects_what_does_not(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fuse_wrongly(decoder: Any, packing: Packing) -> list[FusedLayer]:
        layers = fuse(decoder, packing)
        for layer in layers:
            layer.scale *= -100
        return layers

    trainer = make_trainer(tiny_model)
    assert not fused_layers(trainer._decoder, trainer._packing, trainer._parameters, fuse_wrongly)
    assert "without fused layers: results differ" in caplog.text
    assert "forward" not in vars(trainer._decoder.layers[0])


def test_what_is_kept_of_a_row() -> None:
    layer = LayerBytes(whole=100, narrow=40, input=10)
    inputs, work = 10 * 10, 300
    assert what_fits(1000 * (work + inputs - 1), 1000, 10, layer) == Kept(0)
    assert what_fits(1000 * (work + inputs + 95), 1000, 10, layer) == Kept(0, 3)
    assert what_fits(1000 * (work + inputs + 300 + 125), 1000, 10, layer) == Kept(2, 8)
    assert what_fits(1e9, 1000, 10, layer) == Kept(10)
    plain = LayerBytes(whole=100, narrow=100, input=10)
    assert what_fits(1000 * (work + inputs + 200), 1000, 10, plain) == Kept(2)


def test_rows_are_as_long_as_all_of_them_can_be_kept() -> None:
    layer = LayerBytes(whole=100, narrow=40, input=10)
    length = longest_row(13 * 100 * 5000, 10, layer)
    assert length == 5000
    assert what_fits(13 * 100 * 5000, length, 10, layer) == Kept(10)
    assert longest_row(0, 10, layer) == 2048
    assert longest_row(1e12, 10, layer) == 16384


def test_the_head_of_a_gpu() -> None:
    torch.manual_seed(0)
    head = Head(torch.randn(50, 16))
    hidden, targets = torch.randn(7, 16), torch.randint(50, (7, 3))
    signal, results = torch.randn(7, 3), []
    for run in (
        lambda h: head_logprobs(h, head, targets),
        lambda h: HalfHead.apply(h, head.weight_VH, targets),
    ):
        inputs = hidden.clone().requires_grad_()
        new = run(inputs)
        (new * signal).sum().backward()
        results.append((new.detach(), inputs.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


class Small:
    """Stands in for a GPU's memory."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def shrink(self, error: Exception) -> None:
        self.attempts -= 1
        if self.attempts < 0:
            raise error


def test_a_step_that_runs_out_of_memory_starts_again(tiny_model: Path, ragged: list[Example]) -> None:
    failures = [0, 1]

    def fails_in_the_second_row(new: torch.Tensor, old: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
        failures[0] += 1
        if failures[0] == 2 * failures[1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Surrogate()(new, old, signal)

    plain, retried = make_trainer(tiny_model), make_trainer(tiny_model)
    plain.step(Batch(ragged, loss=Surrogate()), 0)
    retried._budget = Small(attempts=1)  # type: ignore[assignment]
    retried.step(Batch(ragged, loss=fails_in_the_second_row), 0)
    for one, other in zip(gradients(retried), gradients(plain), strict=True):
        assert torch.equal(one, other)
    retried._budget, failures[:] = Small(attempts=0), [0, 1]  # type: ignore[assignment]
    with pytest.raises(torch.OutOfMemoryError):
        retried.step(Batch(ragged, loss=fails_in_the_second_row), 1)
