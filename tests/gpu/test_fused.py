"""The Triton kernels of the training step against plain torch; without a GPU in Triton's interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton", reason="pip install triton, or make test-gpu")

from openclaw_rl.engine.frozen import Int4Linear
from openclaw_rl.engine.int4_gpu import dequantise
from openclaw_rl.train import fused_torch, fused_triton
from openclaw_rl.train.fused import fuse, unfuse
from openclaw_rl.train.fused_torch import Heads
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.types import Batch
from tests.networks import make_network
from tests.train.conftest import make_item

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_norms() -> None:
    x, grad, weight = draw(7, 48), draw(7, 48, seed=1), draw(48, seed=2)
    same(fused_triton.rms_norm(x, weight, 1e-6), fused_torch.rms_norm(x, weight, 1e-6))
    args = (grad, x, weight, 1e-6)
    same(fused_triton.rms_norm_backward(*args), fused_torch.rms_norm_backward(*args))


def test_silu_mul() -> None:
    gate_up, grad = draw(5, 2 * 1100), draw(5, 1100, seed=1)
    same(fused_triton.silu_mul(gate_up), fused_torch.silu_mul(gate_up))
    got, expected = (module.silu_mul_backward(gate_up, grad) for module in (fused_triton, fused_torch))
    same(got[0], expected[0])
    same(got[1], expected[1])


@pytest.mark.parametrize("has_norm", [True, False])
def test_heads(has_norm: bool) -> None:
    norms = (draw(12, seed=5), draw(12, seed=6)) if has_norm else (None, None)
    heads = Heads(6, 2, 12, 1e-6, *norms)
    qkv, cos, sin = draw(5, heads.width), draw(5, 12, seed=1), draw(5, 12, seed=2)
    got, expected = (module.rotate_heads(qkv, heads, cos, sin) for module in (fused_triton, fused_torch))
    same(got[0], expected[0])
    same(got[1], expected[1])
    grads = (draw(5, 6, 12, seed=3), draw(5, 2, 12, seed=4), draw(5, 2, 12, seed=7))
    back = (m.rotate_heads_backward(grads, qkv, heads, cos, sin) for m in (fused_triton, fused_torch))
    same(*back)


def test_four_bits() -> None:
    layer = torch.nn.Linear(96, 70, device=DEVICE)
    frozen = Int4Linear(layer)
    out = torch.empty(70, 96, device=DEVICE)
    dequantise(frozen.codes, frozen.scales, out)
    same(out, frozen._dequantised())
    weight = layer.weight.detach()
    assert float((out - weight).norm() / weight.norm()) < 0.1


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("LlamaForCausalLM", "fp32"), ("Qwen3ForCausalLM", "fp32"), ("LlamaForCausalLM", "bf16")],
)
def test_a_step(family: str, dtype: str, tmp_path: Path) -> None:
    """The same gradients as transformers and PEFT; two sequences share a prefix."""
    items = [make_item(n, p, r) for n, (p, r) in enumerate([(40, 11), (17, 1), (23, 8)])]
    for item in items[1:]:
        item.prompt_ids[:5] = items[0].prompt_ids[:5]
    trainer = LocalTrainer(
        make_network(family, tmp_path),
        LocalTrainerOptions(
            train_device=DEVICE.type, lora_rank=4, train_dtype=dtype, grad_clip=1e9, micro_batch_tokens=256,
            learning_rate=1e-30,
        ),
    )  # fmt: skip
    for name, parameter in trainer._named:
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    if trainer._fused:
        unfuse(trainer._decoder)
    found = []
    for is_fused in (False, True):
        if is_fused:
            for layer in fuse(trainer._decoder, trainer._packing):
                layer.ops = fused_triton
        trainer.step(Batch(items), 0)
        found.append(torch.cat([p.grad.flatten() for p in trainer._parameters if p.grad is not None]))
    error = float((found[1] - found[0]).norm() / found[0].norm())
    assert error < (1e-4 if dtype == "fp32" else 0.05)
