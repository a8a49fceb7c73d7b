"""A frozen layer with the engine's products: the same results and gradients as torch's layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine.frozen import FrozenLinear, native_linear
from tests.engine.test_native import grid


@pytest.fixture
def layer(require: Callable[[str, str], Path]) -> torch.nn.Linear:
    require("cc", "build-essential")
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 64).requires_grad_(False)
    layer.weight.copy_(grid(64, 96))
    return layer


def test_results_and_gradients_are_torchs(layer: torch.nn.Linear) -> None:
    fast = native_linear(layer)
    assert isinstance(fast, FrozenLinear)
    x, direction = torch.randn(2, 5, 96), torch.randn(2, 5, 64)
    grads = []
    for module in (layer, fast):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        (y * direction).sum().backward()
        grads.append(inputs.grad)
        assert torch.allclose(y, layer(x), rtol=1e-3, atol=1e-3)
    assert torch.allclose(grads[0], grads[1], atol=1e-4)
    assert dict(fast.named_parameters()).keys() == dict(layer.named_parameters()).keys()


def test_weights_off_the_grid_keep_their_layer(layer: torch.nn.Linear) -> None:
    layer.weight.normal_()
    assert native_linear(layer) is layer


def test_other_types_keep_their_layer(layer: torch.nn.Linear) -> None:
    half = layer.bfloat16()
    assert native_linear(half) is half


def test_layers_that_leave_half_a_tile_keep_their_layer(require: Callable[[str, str], Path]) -> None:
    layer = torch.nn.Linear(40, 24).requires_grad_(False)
    assert native_linear(layer) is layer


def test_a_trainer_learns_the_same_with_it(model_path: Path) -> None:
    """On the real model: the adapters' gradients, and the log-probs they come from."""
    from openclaw_rl.train.local import LocalTrainer, LocalTrainerOptions

    options = LocalTrainerOptions(train_device="cpu", lora_rank=4, lora_alpha=8)
    ids = torch.arange(40, 140).unsqueeze(0)
    results = []
    for frozen_linear in (None, native_linear):
        trainer = LocalTrainer(model_path, options, frozen_linear)
        for name, parameter in trainer._named:
            if "lora_B" in name:
                generator = torch.Generator().manual_seed(len(name))
                parameter.data.normal_(std=0.02, generator=generator)
        assert isinstance(trainer._decoder.layers[0].mlp.up_proj.base_layer, FrozenLinear) == bool(
            frozen_linear
        )
        hidden = trainer._decoder(
            input_ids=ids, position_ids=torch.arange(100).unsqueeze(0), use_cache=False, lengths=[100]
        ).last_hidden_state
        logprobs = torch.log_softmax(trainer._head(hidden[0, 50:]), -1)[:, 77]
        logprobs.mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in trainer._parameters if p.grad is not None])
        results.append((logprobs.detach(), gradients))
    (exact, expected), (fast, gradients) = results
    assert float((fast - exact).abs().max()) < 0.01
    assert float(torch.cosine_similarity(gradients, expected, dim=0)) > 0.9999
