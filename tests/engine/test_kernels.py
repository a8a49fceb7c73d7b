"""Every kernel against the float reference: products, and log-probs of a whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine.build import Unavailable
from openclaw_rl.engine.choose import MAX_ERROR, choose_kernel
from openclaw_rl.engine.kernels import (
    KERNELS,
    Int8Kernel,
    Kernel,
    NativeHead,
    RefinedHead,
    WideInt4Kernel,
    kernel_set,
    quantise_int4,
)
from openclaw_rl.engine.levels import levels_here
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.native import load_native
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.types import Weights
from tests.engine.conftest import Reference, run_generation

#: Mean and largest |log-prob - transformers' fp32| over sampled tokens, per kernel. The low-precision
#: bounds are twice what docs/lab/benchmarks.md measured; raising one is a change users must be told of.
BOUNDS = {
    "float": (1e-4, 1e-3),
    "bf16": (0.04, 0.4),
    "int4": (0.04, 0.4),
    "int4+bf16": (0.04, 0.4),
    "native": (0.002, 0.02),
    "native+bf16": (0.04, 0.4),
    "native+float": (0.002, 0.02),
    "native-bf16": (0.04, 0.4),
}


def _has_native() -> bool:
    try:
        load_native()
    except Unavailable:
        return False
    return True


needs_native = pytest.mark.skipif(not _has_native(), reason="no compiler, or neither AVX2 nor NEON")
NATIVE = [f"{name}@{level.name}" for name in ("native", "native-bf16") for level in levels_here()]
EVERY = [
    *(name for name in KERNELS if not name.startswith("native")),
    *(pytest.param(name, marks=needs_native) for name in (*NATIVE, "native+bf16", "native+float")),
]


def test_weights_from_a_4_bit_grid_are_found_exactly() -> None:
    torch.manual_seed(0)
    step, low = torch.rand(16, 2, 1) + 0.1, torch.randn(16, 2, 1)
    levels = torch.randint(0, 16, (16, 2, 32)).float()
    levels[..., 0], levels[..., 1] = 0, 15
    levels[3] = levels[3].clamp_max(11)
    weight = (levels * step + low).reshape(16, 64)
    codes, found_step, found_low = quantise_int4(weight)
    restored = codes.reshape(16, 2, 32) * found_step.unsqueeze(-1) + found_low.unsqueeze(-1)
    assert torch.allclose(restored.reshape(16, 64), weight, atol=1e-5)


def test_codes_do_not_depend_on_how_many_groups_are_read_at_once() -> None:
    torch.manual_seed(0)
    weight = torch.cat([torch.randn(300, 512), torch.randint(0, 5, (300, 512)).float()])  # 9,600 groups
    rows = [quantise_int4(row) for row in weight.split(1)]
    whole = [torch.cat(parts) for parts in zip(*rows, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(quantise_int4(weight), whole, strict=True))


def test_constant_groups_do_not_divide_by_zero() -> None:
    codes, step, low = quantise_int4(torch.full((16, 32), 0.25))
    assert torch.isfinite(step).all()
    assert torch.allclose(codes * step + low, torch.full((16, 32), 0.25))


@pytest.mark.parametrize("name", EVERY[1:])
@pytest.mark.parametrize("rows", [1, 8, 13, 70])
def test_products_are_close_to_the_reference(name: str, rows: int) -> None:
    torch.manual_seed(0)
    grid = torch.randint(0, 16, (2, 48, 64)).float()
    weights = [(part - 7.5) * 0.01 for part in grid]
    biases = [torch.randn(48), None]
    x = torch.randn(rows, 64)
    expected = kernel_set("float").projection(weights, [biases[0], torch.zeros(48)])(x)
    result = kernel_set(name).projection(weights, biases)(x).float()
    assert float((result - expected).norm() / expected.norm()) < MAX_ERROR


needs_int8 = pytest.mark.skipif(not Int8Kernel.is_exact(), reason="int8 sums overflow on this processor")


@pytest.mark.parametrize(
    "kernel",
    [
        WideInt4Kernel,
        pytest.param(Int8Kernel, marks=needs_int8),
        pytest.param(lambda weight: NativeHead(load_native(), weight, num_exact=0), marks=needs_native),
    ],
)
def test_8_bit_weights_keep_their_precision(kernel: Callable[[torch.Tensor], Kernel]) -> None:
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (64, 96)).float() * 0.01
    x = torch.randn(3, 96)
    x[:, 5] *= 30  # hidden states have a few large entries; the small ones must survive beside them
    expected = x @ weight.T
    assert float((kernel(weight)(x) - expected).norm() / expected.norm()) < MAX_ERROR


@needs_native
def test_a_head_that_leaves_half_a_tile_is_left_to_torch() -> None:
    weight, x = torch.randn(32002, 64), torch.randn(1, 64)
    assert torch.allclose(kernel_set("native").head(weight)(x), x @ weight.T, atol=1e-4)


@needs_int8
def test_int8_rows_do_not_depend_on_their_company() -> None:
    torch.manual_seed(0)
    kernel, x = Int8Kernel(torch.randn(64, 96)), torch.randn(9, 96)
    assert torch.equal(kernel(x)[3], kernel(x[3:4])[0])


def test_refined_head_is_exact_where_it_matters() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(1024, 64), torch.randn(2, 64)
    exact = x @ weight.T
    heads = [
        RefinedHead(weight, num_exact=32),
        *([NativeHead(load_native(), weight, num_exact=32)] if _has_native() else []),
    ]
    for head in heads:
        logits = head(x)
        best = exact.topk(16, dim=-1).indices
        assert torch.allclose(logits.gather(1, best), exact.gather(1, best), atol=1e-5)


async def check_bound(
    name: str, model_path: Path, reference: Reference, tokenizer, adapters: dict[int, Path]
) -> None:
    options = LocalEngineOptions(
        device="cpu", dtype="fp32", kernel=name, chunk_tokens=32, idle_chunk_tokens=96
    )
    engine = LocalEngine(model_path, options)
    errors = []
    try:
        await engine.load(Weights.in_folder(1, adapters[1]))
        for version in (0, 1):
            prompt = tokenizer(
                "A letter to a friend about the weather in 1987, and what it did to us. " * 6
            ).input_ids
            tokens = await run_generation(engine, prompt, max_tokens=40, version=version, seed=5)
            expected_TV = reference([*prompt, *(token.id for token in tokens)], version)
            for i, token in enumerate(tokens):
                errors.append(abs(float(expected_TV[len(prompt) + i - 1, token.id]) - token.logprob))
    finally:
        await engine.close()
    mean, largest = sum(errors) / len(errors), max(errors)
    print(f"{name}: mean {mean:.5f} largest {largest:.4f}")
    allowed_mean, allowed_largest = BOUNDS[name.partition("@")[0]]
    assert mean < allowed_mean
    assert largest < allowed_largest


#: What is chosen by itself on some machine, and what it is measured against. Each takes a load of the model.
USUAL = ("float", *(f"native@{level.name}" for level in levels_here()))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_native if name != "float" else ()) for name in USUAL],
)
async def test_log_probs_stay_within_the_stated_bound(
    name: str, model_path: Path, reference: Reference, tokenizer, adapters: dict[int, Path]
) -> None:
    await check_bound(name, model_path, reference, tokenizer, adapters)


@pytest.mark.kernels
@pytest.mark.parametrize(
    "name", [name for name in EVERY if (name if isinstance(name, str) else name.values[0]) not in USUAL]
)
async def test_log_probs_of_other_kernels_stay_within_the_stated_bound(
    name: str, model_path: Path, reference: Reference, tokenizer, adapters: dict[int, Path]
) -> None:
    await check_bound(name, model_path, reference, tokenizer, adapters)


def test_choice_is_explained_and_can_be_overridden(model_path: Path) -> None:
    checkpoint = read_checkpoint(model_path)
    choice = choose_kernel(checkpoint, torch.device("cpu"), torch.float32, "auto")
    assert choice.name in KERNELS
    assert len(choice.reasons) == len(KERNELS)
    assert choose_kernel(checkpoint, torch.device("cpu"), torch.float32, "bf16").name == "bf16"
    for wrong in ("int3", "native@sse3", "float@avx2"):
        with pytest.raises(ValueError, match="avx2"):
            choose_kernel(checkpoint, torch.device("cpu"), torch.float32, wrong)
