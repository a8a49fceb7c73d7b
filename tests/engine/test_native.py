"""The C kernels against torch at every level of this processor, and what happens without a build."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine import build
from openclaw_rl.engine.build import Unavailable, open_library
from openclaw_rl.engine.kernels import kernel_set, native_bf16, native_int4
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.levels import LEVELS, Level, levels_here
from openclaw_rl.engine.lora import PROJECTIONS, Adapter, LowRank
from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.native import TILE, Native, Product, load_native, pack_int8
from openclaw_rl.engine.weights import read_checkpoint
from openclaw_rl.testing import tiny_model

CPU = torch.device("cpu")
HERE = [level.name for level in levels_here()]


def load(require: Callable[[str, str], Path], level: str) -> Native:
    require("cc", "build-essential")
    try:
        return load_native(level)
    except Unavailable as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))


@pytest.fixture(params=HERE)
def native(request: pytest.FixtureRequest, require: Callable[[str, str], Path]) -> Native:
    torch.manual_seed(0)
    return load(require, request.param)


def grid(out: int, size: int) -> torch.Tensor:
    """Weights as a 4-bit file has them: steps and lows in fp16."""
    step, low = (
        torch.rand(out, size // 32, 1).half().float() / 8,
        torch.randn(out, size // 32, 1).half().float(),
    )
    codes = torch.randint(0, 16, (out, size // 32, 32)).float()
    codes[..., 0], codes[..., 1] = 0, 15
    return (codes * step + low).view(out, size)


# --- products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 19, 70, 131])
def test_int4_differs_only_by_the_rounding_of_its_input(native: Native, rows: int) -> None:
    weight, bias = grid(176, 96), torch.randn(176)  # 176 outputs leave tiles over
    x = torch.randn(rows, 96)
    kernel = native_int4(native, [weight], [bias])
    rounding = x.view(rows, 3, 32).abs().amax(-1) / 32639 / 2
    bound = (rounding.repeat_interleave(32, -1) @ weight.abs().T) + 1e-4
    assert ((kernel(x) - (x @ weight.T + bias)).abs() <= bound).all()
    assert torch.equal(kernel(x)[rows - 1], kernel(x[rows - 1 :])[0])  # a row does not depend on its company


def test_inputs_are_rounded_more_finely_than_to_bf16(native: Native) -> None:
    weight, x = grid(256, 128), torch.randn(8, 128)
    exact = (x.double() @ weight.double().T).float()
    ours = (native_int4(native, [weight], [None])(x) - exact).norm()
    assert ours < (x.bfloat16().float() @ weight.T - exact).norm() / 10


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 15])
def test_bf16_weights_are_exact(native: Native, rows: int) -> None:
    weights = [torch.randn(64, 96).bfloat16().float(), torch.randn(32, 96).bfloat16().float()]
    biases = [torch.randn(64), None]
    x = torch.randn(rows, 96)
    expected = torch.cat([x @ weights[0].T + biases[0], x @ weights[1].T], dim=-1)
    kernel = native_bf16(native, weights, biases)
    assert torch.allclose(kernel(x), expected, atol=1e-4)
    assert torch.equal(kernel(x)[rows - 1], kernel(x[rows - 1 :])[0])


@pytest.mark.parametrize("other", HERE[1:])
def test_levels_compute_the_same_numbers(require: Callable[[str, str], Path], other: str) -> None:
    torch.manual_seed(0)
    weight, x = grid(96, 1536), torch.randn(9, 1536)
    best, plain = (native_int4(load(require, name), [weight], [None])(x) for name in (HERE[0], other))
    assert torch.equal(best, plain)
    codes, scale = torch.randint(-127, 128, (96, 1536)), torch.rand(96, 48).half().float()
    product = Product("int8", pack_int8(codes, scale), None, 1536, 96)
    assert torch.equal(load(require, HERE[0]).product(product, x), load(require, other).product(product, x))


def test_extreme_inputs(native: Native) -> None:
    weight = grid(32, 64)
    kernel = native_int4(native, [weight], [None])
    x = torch.zeros(5, 64)
    x[1] = 1e-35
    x[2] = 1e30
    x[3, 7] = float("nan")
    x[4, 40] = float("inf")
    y = kernel(x)
    assert torch.equal(y[0], torch.zeros(32))
    assert torch.allclose(y[1], torch.zeros(32))
    assert torch.allclose(y[2], x[2] @ weight.T, rtol=1e-3)
    assert y[3].isnan().all()  # one broken number breaks its row, and is seen to
    assert y[4].isnan().all()


def test_shapes_that_leave_half_a_tile_are_refused(native: Native) -> None:
    with pytest.raises(Unavailable, match="tiles"):
        native_int4(native, [torch.randn(40, 64)], [None])
    with pytest.raises(Unavailable, match="tiles"):
        native_bf16(native, [torch.randn(64, 40)], [None])


# --- layers --------------------------------------------------------------------------------------------


def random_model(folder: Path, heads: int, key_heads: int, head_dim: int, *, qk_norm: bool) -> Path:
    """A small model of an unusual shape, in bf16, so that native products are exact."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3" if qk_norm else "llama", hidden_size=32 * heads, intermediate_size=160, num_hidden_layers=3,
        num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=head_dim, vocab_size=512,
        max_position_embeddings=1024, tie_word_embeddings=True, attention_bias=not qk_norm,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            parameter.copy_(parameter.bfloat16())
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    return folder


def random_adapter(decoder: Decoder, rank: int, leave_out: str) -> Adapter:
    adapter = Adapter()
    for layer in range(decoder.shape.num_layers):
        for name in PROJECTIONS:
            if name == leave_out:
                continue
            widths, parts, column = decoder.widths[name], [], 0
            b = torch.zeros(rank * len(widths), sum(widths))
            for i, width in enumerate(widths):
                b[i * rank : (i + 1) * rank, column : column + width] = 0.05 * torch.randn(rank, width)
                parts.append((i * rank, (i + 1) * rank, column, column + width))
                column += width
            a = torch.randn(rank * len(widths), decoder.input_widths[name])
            adapter[layer, name] = LowRank(a, b, torch.tensor(parts))
    return adapter


@pytest.mark.parametrize(
    ("heads", "key_heads", "head_dim", "qk_norm"),
    [(9, 3, 64, False), (8, 1, 128, True), (4, 4, 32, False), (14, 2, 64, True), (6, 6, 80, False)],
)
def test_layers_are_torchs_layers(
    native: Native, tmp_path: Path, heads: int, key_heads: int, head_dim: int, qk_norm: bool
) -> None:
    """Prompts and decoding in one batch, with and without adapters, around ends of tiles, blocks and ranges.

    The products are exact, so only what lies between them could differ.
    """
    checkpoint = read_checkpoint(random_model(tmp_path, heads, key_heads, head_dim, qk_norm=qk_norm))
    ours = Decoder(checkpoint, CPU, torch.float32, kernel_set(f"native-bf16@{native.level.name}"))
    theirs = Decoder(checkpoint, CPU, torch.float32)
    assert ours._native is not None
    ours._native.most_rows = 1 << 20
    first, second = random_adapter(ours, 4, "o"), random_adapter(ours, 3, "gate_up")
    adapters = [None, first, first, second, None, second, None, None]
    lengths = [0, 1, 15, 16, 255, 256, 300, 700]
    results = []
    for decoder in (ours, theirs):
        generator = torch.Generator().manual_seed(1)
        caches = [SequenceCache(3, key_heads, head_dim, CPU, torch.float32) for _ in lengths]
        for length, cache, adapter in zip(lengths, caches, adapters, strict=True):
            if length:
                ids = torch.randint(0, 512, (length,), generator=generator).tolist()
                decoder.forward([Chunk(ids, cache, adapter, 0)])
        logits, states = [], []
        for counts in ([1] * 8, [1, 17, 1, 3, 16, 40, 2, 70], [5, 1, 1, 1, 1, 1, 33, 1]):
            chunks = [
                Chunk(
                    torch.randint(0, 512, (count,), generator=generator).tolist(),
                    cache, adapter, min(count, 4), hidden_layer=layer,
                )
                for count, cache, adapter, layer in zip(
                    counts, caches, adapters, [None, 0, 1, 2, None, 2, None, 0], strict=True
                )
            ]  # fmt: skip
            logits.append(decoder.forward(chunks))
            states += [chunk.hidden for chunk in chunks if chunk.hidden is not None]
        keys = torch.cat([cache._kv_L2HTD[:, :, :, : cache.length].flatten() for cache in caches])
        results.append((torch.cat(logits), torch.cat(states), keys))
    for mine, expected in zip(*results, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-4, atol=2e-4)


def test_a_sequence_does_not_depend_on_its_company(native: Native, tmp_path: Path) -> None:
    """Beside others, and alone: bit for bit."""
    checkpoint = read_checkpoint(random_model(tmp_path, 6, 2, 32, qk_norm=False))
    decoder = Decoder(checkpoint, CPU, torch.float32, kernel_set(f"native@{native.level.name}"))
    replies = []
    for others in (0, 5):
        mine, rest = new_cache(decoder), [new_cache(decoder) for _ in range(others)]
        rows = []
        for ids in (list(range(300)), [7], [8]):
            chunks = [
                Chunk(ids, mine, None),
                *(Chunk(ids[: 20 + i], cache, None) for i, cache in enumerate(rest)),
            ]
            rows.append(decoder.forward(chunks)[0])
        replies.append(torch.stack(rows))
    assert torch.equal(*replies)


def new_cache(decoder: Decoder) -> SequenceCache:
    shape = decoder.shape
    return SequenceCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, CPU, torch.float32)


def test_more_streams_than_a_stack_has_room_for(native: Native, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(random_model(tmp_path, 4, 2, 128, qk_norm=False))
    decoder = Decoder(checkpoint, CPU, torch.float32, kernel_set(f"native@{native.level.name}"))
    alone = decoder.forward([Chunk([5], new_cache(decoder), None)])
    many = decoder.forward([Chunk([5], new_cache(decoder), None) for _ in range(3000)])
    assert torch.allclose(many, alone.expand_as(many), atol=1e-4)


def test_heads_of_half_a_tile_are_left_to_torch(native: Native, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(tiny_model(tmp_path))
    assert checkpoint.shape.head_dim % TILE
    decoder = Decoder(checkpoint, CPU, torch.float32, kernel_set("native-bf16"))
    assert decoder._native is None
    assert decoder.forward([Chunk([5, 6, 7], new_cache(decoder), None)]).isfinite().all()


# --- levels ----------------------------------------------------------------------------------------------


def test_a_level_that_this_processor_lacks_is_refused_by_name() -> None:
    missing = next(level for level in LEVELS.values() if level.name not in HERE)
    with pytest.raises(Unavailable, match="lacks"):
        load_native(missing.name)
    with pytest.raises(ValueError, match="avx2"):
        load_native("sse3")


# --- building --------------------------------------------------------------------------------------------


@pytest.fixture
def level(require: Callable[[str, str], Path]) -> Level:
    require("cc", "build-essential")
    return levels_here()[-1]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a machine where nothing was built yet, from a checkout."""
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    return tmp_path


def test_it_is_built_once(level: Level, fresh: Path) -> None:
    open_library(level)
    (library,) = fresh.iterdir()
    made = library.stat().st_mtime_ns
    open_library(level)
    assert [path.stat().st_mtime_ns for path in fresh.iterdir()] == [made]


def test_without_a_compiler_the_reason_is_said(
    level: Level, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    with pytest.raises(Unavailable, match="no C compiler"):
        open_library(level)


def test_a_wheels_kernels_need_no_compiler(
    level: Level, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.compile_level(build.find_compilers()[0], level, build.PREBUILT / f"native-{level.name}.so")
    monkeypatch.setenv("PATH", str(fresh))
    assert open_library(level).run_layers
    assert [path.name for path in fresh.iterdir()] == ["prebuilt"]


def test_a_wheels_kernel_that_does_not_load_is_compiled(level: Level, fresh: Path) -> None:
    build.PREBUILT.mkdir()
    (build.PREBUILT / f"native-{level.name}.so").write_bytes(b"for another libc")
    assert open_library(level).run_layers
    assert len(list(fresh.iterdir())) == 2


def test_a_compiler_that_fails_is_no_reason_not_to_serve(
    level: Level, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "find_compilers", lambda: ["false"])
    with pytest.raises(Unavailable, match="failed"):
        open_library(level)
    assert list(fresh.iterdir()) == []


def test_the_next_compiler_is_tried(level: Level, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    assert open_library(level).run_layers


def test_what_was_cut_off_is_built_again(level: Level, fresh: Path) -> None:
    library = build.compiled(build.find_compilers()[0], level)
    library.write_bytes(b"half a file")
    open_library(level)
    assert library.stat().st_size > 1000


def test_a_path_with_a_space_is_one_path() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 fe:00 12 /home/my user/torch/lib/libgomp.so.1\n"
        "7f02-7f03 r--p 00001000 fe:00 12 /home/my user/torch/lib/libgomp.so.1\n"
    )
    assert build.openmp_files(maps) == ["/home/my user/torch/lib/libgomp.so.1"]
