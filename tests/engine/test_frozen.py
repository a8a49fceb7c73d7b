"""Frozen layers under adapters: what the backward pass may round."""

from __future__ import annotations

import pytest
import torch

from openclaw_rl.engine import frozen


@pytest.mark.parametrize("has_bf16", [False, True])
def test_a_gradient_through_a_frozen_layer_is_as_exact_as_its_precision(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool
) -> None:
    monkeypatch.setattr(frozen, "multiplies_bf16", lambda: has_bf16)
    generator = torch.Generator().manual_seed(1)
    grad, weight = (torch.randn(shape, generator=generator) for shape in ((50, 96), (96, 64)))
    exact = grad.double() @ weight.double()
    got = frozen.multiply_gradient(grad, weight)
    assert got.dtype == torch.float32
    error = float((got - exact).norm() / exact.norm())
    assert error < (0.01 if has_bf16 else 1e-6)
    assert (error > 1e-4) == has_bf16
