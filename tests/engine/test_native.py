"""``native.c`` against torch: every function alone, and what happens where it cannot be built."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from openclaw_rl.engine import native
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.local import LocalEngine, LocalEngineOptions
from openclaw_rl.engine.lora import LowRank
from openclaw_rl.engine.native import VECTOR, DecodeStep, Native, Out, Unavailable, load_native
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.testing import tiny_model
from tests.engine.conftest import Reference, run_generation

CPU = torch.device("cpu")


@pytest.fixture
def built(require: Callable[[str, str], Path]) -> Native:
    require("cc", "build-essential")
    try:
        return load_native()
    except Unavailable as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", [1, 5])
def test_norm_adds_first(built: Native, dtype: torch.dtype, rows: int) -> None:
    hidden, delta, weight = torch.randn(rows, 48), torch.randn(rows, 48).to(dtype), torch.randn(48)
    expected_hidden = hidden + delta
    out = Out(rows, 48, bf16=True, fp32=True)
    built.add_norm(hidden, delta, weight, 1e-5, out)
    expected = F.rms_norm(expected_hidden, (48,), weight, 1e-5)
    assert torch.equal(hidden, expected_hidden)
    assert out.fp32 is not None
    assert torch.allclose(out.fp32, expected, atol=1e-5)
    assert torch.equal(out.for_product, out.fp32.bfloat16())


@pytest.mark.parametrize("rows", [1, 5])
def test_gate_is_silu_times_up(built: Native, dtype: torch.dtype, rows: int) -> None:
    both = (torch.randn(rows, 96) * 20).to(dtype)
    out = Out(rows, 48, bf16=False, fp32=True)
    built.gate(both, out)
    gate, up = both.float().chunk(2, dim=-1)
    assert torch.allclose(out.for_product, F.silu(gate) * up, rtol=1e-5, atol=1e-5)


def test_rounding_is_torchs_and_nan_stays_nan(built: Native) -> None:
    values = torch.tensor([[1.00390625, 1.01171875, -3.14159, 1e-40, 3.4e38, float("nan"), 0.0, 1.0]])
    out = Out(1, 8, bf16=True, fp32=True)
    built.add_norm(values.clone(), None, torch.ones(8), 1e-5, out)
    assert out.fp32 is not None
    assert out.for_product.isnan().all()  # one broken number breaks its row, and is seen to
    finite = torch.randn(1, 4096) * 10 ** torch.linspace(-8, 8, 4096)
    out = Out(1, 4096, bf16=True, fp32=True)
    built.add_norm(finite, None, torch.ones(4096), 1e-5, out)
    assert out.fp32 is not None
    assert torch.equal(out.for_product, out.fp32.bfloat16())


@pytest.mark.parametrize("rows", [1, 6])
def test_adapters_of_joined_projections(built: Native, rows: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(6, 64), torch.zeros(6, 150)
    parts = torch.tensor([[0, 4, 0, 100], [4, 6, 110, 150]])
    for first_rank, last_rank, first, last in parts.tolist():
        b[first_rank:last_rank, first:last] = torch.randn(last_rank - first_rank, last - first)
    x, y = torch.randn(rows, 64), torch.randn(rows, 150)
    expected = y + x @ a.T @ b
    built.low_rank(y, x, LowRank(a, b, parts))
    assert torch.allclose(y, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("heads", "key_heads", "size"), [(9, 3, 64), (8, 1, 128), (4, 4, 32), (14, 2, 64), (5, 5, 80)]
)
@pytest.mark.parametrize("has_norms", [False, True])
def test_attention_over_separate_caches(
    built: Native, dtype: torch.dtype, heads: int, key_heads: int, size: int, has_norms: bool
) -> None:
    """Lengths on both sides of a vector's and of a block's end, in caches of different capacity."""
    lengths, layer = [0, 1, 15, 16, 255, 256, 300, 700], 1
    rows = len(lengths)
    caches = []
    for length in lengths:
        cache = SequenceCache(2, key_heads, size, CPU, torch.float32)
        cache.reserve(length + 1)
        cache._kv_L2HTD.normal_()
        cache.length = length
        caches.append(cache)
    angles = torch.randn(rows, size // 2)
    cos = torch.cat([angles.cos(), angles.cos()], -1)
    sin = torch.cat([-angles.sin(), angles.sin()], -1)
    qkv = torch.randn(rows, (heads + 2 * key_heads) * size).to(dtype)
    norms = torch.rand(2, size) + 0.5
    step = DecodeStep(caches, cos, sin, heads, key_heads, 1e-6)
    if has_norms:
        step.use_norms(norms[0], norms[1])
    out = Out(rows, heads * size, bf16=False, fp32=True)
    built.attend(step, qkv, layer, out)

    q, k, v = qkv.float().view(rows, -1, size).split([heads, key_heads, key_heads], dim=1)
    if has_norms:
        q, k = F.rms_norm(q, (size,), norms[0], 1e-6), F.rms_norm(k, (size,), norms[1], 1e-6)
    q, k = (x * cos[:, None] + x.roll(size // 2, -1) * sin[:, None] for x in (q, k))
    for row, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        keys, values = cache._kv_L2HTD[layer, :, :, : length + 1]
        assert torch.allclose(keys[:, length], k[row], atol=1e-5)
        assert torch.equal(values[:, length], v[row])
        expected = F.scaled_dot_product_attention(q[row].unsqueeze(1), keys, values, enable_gqa=True)
        assert torch.allclose(out.for_product[row].view(heads, 1, size), expected, atol=2e-5)


async def test_a_whole_model_is_as_exact_as_with_torchs_operators(
    built: Native, model_path: Path, reference: Reference, tokenizer, adapters: dict[int, Path]
) -> None:
    """Exact products, so only operators could differ; with and without an adapter, past a block's end."""
    prompt = tokenizer("The ferry left the harbour at six, and nobody on board had slept. " * 18).input_ids
    replies = {}
    for is_native in (True, False):
        options = LocalEngineOptions(device="cpu", dtype="fp32", kernel="float", native=is_native)
        engine = LocalEngine(model_path, options)
        try:
            await engine.load(1, adapters[1])
            for version in (0, 1):
                tokens = await run_generation(engine, prompt, max_tokens=16, version=version, seed=3)
                ids = [token.id for token in tokens]
                expected_TV = reference([*prompt, *ids], version)
                for i, token in enumerate(tokens):
                    assert abs(float(expected_TV[len(prompt) + i - 1, token.id]) - token.logprob) < 1e-3
                replies[is_native, version] = ids
        finally:
            await engine.close()
    assert len(prompt) > 256
    assert [replies[True, v] for v in (0, 1)] == [replies[False, v] for v in (0, 1)]


async def test_heads_of_half_a_vector_are_left_to_torch(built: Native, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    assert read_checkpoint(model).shape.head_dim % VECTOR
    replies = []
    for is_native in (True, False):
        engine = LocalEngine(model, LocalEngineOptions(device="cpu", kernel="float", native=is_native))
        try:
            replies.append(
                [token.id for token in await run_generation(engine, [5, 6, 7], max_tokens=8, seed=1)]
            )
        finally:
            await engine.close()
    assert replies[0] == replies[1]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a machine where nothing was built yet."""
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "load_native", native._load)
    return tmp_path


def test_it_is_built_once(built: Native, fresh: Path) -> None:
    native.load_native()
    (library,) = fresh.iterdir()
    made = library.stat().st_mtime_ns
    native.load_native()
    assert [path.stat().st_mtime_ns for path in fresh.iterdir()] == [made]


def test_without_a_compiler_the_reason_is_said(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    with pytest.raises(Unavailable, match="no C compiler"):
        native.load_native()


def test_a_compiler_that_fails_is_no_reason_not_to_serve(
    built: Native, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "find_compilers", lambda: ["false"])
    with pytest.raises(Unavailable, match="failed"):
        native.load_native()
    assert list(fresh.iterdir()) == []


def test_the_next_compiler_is_tried(built: Native, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    assert native.load_native().has_products == built.has_products


def test_what_was_cut_off_is_built_again(built: Native, fresh: Path) -> None:
    library = native._built(native.find_compilers()[0])
    library.write_bytes(b"half a file")
    native.load_native()
    assert library.stat().st_size > 1000


def test_a_path_with_a_space_is_one_path() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 fe:00 12 /home/my user/torch/lib/libgomp.so.1\n"
        "7f02-7f03 r--p 00001000 fe:00 12 /home/my user/torch/lib/libgomp.so.1\n"
    )
    assert native._openmp_files(maps) == ["/home/my user/torch/lib/libgomp.so.1"]


def test_more_streams_than_a_stack_has_room_for(built: Native) -> None:
    rows, heads, size = 1024, 32, 128  # 16 MB of queries
    caches = [SequenceCache(1, 1, size, CPU, torch.float32) for _ in range(rows)]
    cos, sin = torch.ones(rows, size), torch.zeros(rows, size)
    step = DecodeStep(caches, cos, sin, heads, 1, 1e-5)
    qkv = torch.randn(rows, (heads + 2) * size)
    out = Out(rows, heads * size, bf16=False, fp32=True)
    built.attend(step, qkv, 0, out)
    values = qkv[:, -size:].repeat(1, heads)  # one token attends to itself
    assert out.fp32 is not None
    assert torch.allclose(out.fp32, values, atol=1e-5)
