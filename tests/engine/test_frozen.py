"""A frozen layer with the engine's products: the same results and gradients as torch's layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine.frozen import FrozenLinear, Int4Linear, int4_linear, native_linear
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
        trainer._packing.describe([100])
        positions = torch.arange(100).unsqueeze(0)
        hidden = trainer._decoder(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        logprobs = torch.log_softmax(trainer._head.logits(hidden[0, 50:]), -1)[:, 77]
        logprobs.mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in trainer._parameters if p.grad is not None])
        results.append((logprobs.detach(), gradients))
    (exact, expected), (fast, gradients) = results
    assert float((fast - exact).abs().max()) < 0.01
    assert float(torch.cosine_similarity(gradients, expected, dim=0)) > 0.9999


def test_four_bits_are_the_weights_of_a_file_of_four_bits() -> None:
    torch.manual_seed(2)
    codes = torch.randint(16, (64, 3, 32)).float()
    codes[..., 0], codes[..., 1] = 0, 15
    step, low = (torch.rand(2, 64, 3, 1) - torch.tensor([0.0, 0.5]).view(2, 1, 1, 1)).half().float()
    layer = torch.nn.Linear(96, 64).requires_grad_(False)
    layer.weight.copy_((codes * step + low).view(64, 96))
    packed = int4_linear(layer)
    assert isinstance(packed, Int4Linear)
    assert torch.allclose(packed.dequantised(), layer.weight, atol=1e-6)
    assert sum(b.nbytes for b in packed.buffers()) == 64 * 96 // 2 + 2 * 64 * 3 * 2
    assert list(dict(packed.named_parameters())) == ["bias"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_four_bits(dtype: torch.dtype) -> None:
    """Forward and backward multiply by the same weights, each off by at most half a step."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(64, 48).to(dtype).requires_grad_(False)
    packed = int4_linear(layer)
    assert isinstance(packed, Int4Linear)
    weight = packed.dequantised()
    step = packed.scales[0].float().repeat_interleave(32, dim=1)
    assert bool(((weight - layer.weight).float().abs() <= 0.51 * step + 2e-3).all())
    x, direction = torch.randn(2, 5, 64, dtype=dtype).requires_grad_(), torch.randn(2, 5, 48, dtype=dtype)
    y = packed(x)
    (y * direction).sum().backward()
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(
        y.detach(), torch.nn.functional.linear(x.detach(), weight, layer.bias), **close
    )
    torch.testing.assert_close(x.grad, direction @ weight, **close)


def test_rows_of_no_whole_groups_stay() -> None:
    layer = torch.nn.Linear(40, 24).requires_grad_(False)
    assert int4_linear(layer) is layer
