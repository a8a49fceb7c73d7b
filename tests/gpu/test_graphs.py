"""Recorded decoding against the plain pass; without a GPU the kernels run in Triton's interpreter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton", reason="pip install triton, or make test-gpu")

from openclaw_rl.engine import graphs
from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.lora import PROJECTIONS, Adapter, LowRank
from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.weights import read_checkpoint

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def shapes() -> dict[str, Any]:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    small: dict[str, Any] = {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "max_position_embeddings": 1024, "initializer_range": 0.2, "eos_token_id": 2, "head_dim": 16,
    }  # fmt: skip
    return {
        "llama, three queries a key": LlamaConfig(**small, num_attention_heads=6, num_key_value_heads=2),
        "qwen3, norms on heads": Qwen3Config(**small, num_attention_heads=4, num_key_value_heads=1),
        "qwen2, biases": Qwen2Config(**small, num_attention_heads=3, num_key_value_heads=3),
    }


@pytest.fixture(params=["llama, three queries a key", "qwen3, norms on heads", "qwen2, biases"])
def decoders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Decoder, Decoder]:
    """The same weights twice: the plain pass, and one that records."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(shapes()[request.param])
    for name, parameter in network.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    network.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    plain = Decoder(checkpoint, DEVICE, torch.float32)
    return plain, Decoder(checkpoint, DEVICE, torch.float32, graphs=True)


def adapter(decoder: Decoder, rank: int, seed: int, skip: str = "") -> Adapter:
    torch.manual_seed(seed)
    found = Adapter()
    for layer in range(decoder.shape.num_layers):
        for name in PROJECTIONS:
            if name != skip:
                a = torch.randn(rank, decoder.input_widths[name], device=DEVICE) * 0.2
                b = torch.randn(rank, sum(decoder.widths[name]), device=DEVICE) * 0.2
                found[layer, name] = LowRank(a, b, torch.tensor([[0, rank, 0, b.shape[1]]]))
    return found


def cache_of(decoder: Decoder) -> SequenceCache:
    shape = decoder.shape
    return SequenceCache(shape.num_layers, shape.num_kv_heads, shape.head_dim, DEVICE, torch.float32)


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(3, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_any_mix_of_lengths_and_adapters(decoders: tuple[Decoder, Decoder]) -> None:
    """Three steps of rows of 1 to 600 tokens, with no, a small and a larger adapter; a prompt among them."""
    plain, _ = decoders
    adapters = [None, adapter(plain, 4, 1), adapter(plain, 6, 2, skip="o")]
    prompts = [ids(count, seed) for seed, count in enumerate((1, 7, 33, 255, 600))]
    both = []
    for decoder in decoders:
        caches = [cache_of(decoder) for _ in prompts]
        for number, (prompt, cache) in enumerate(zip(prompts, caches, strict=True)):
            decoder.forward([Chunk(prompt, cache, adapters[number % 3], num_logits=0)])
        late = cache_of(decoder)
        steps = []
        for step in range(3):
            rows = [
                Chunk([5 + 7 * step + number], cache, adapters[number % 3])
                for number, cache in enumerate(caches)
            ]
            rows.insert(2, Chunk(ids(9, 50 + step), late, adapters[1], num_logits=4))
            steps.append(decoder.forward(rows).clone())
        both.append(torch.stack(steps))
        assert [cache.length for cache in caches] == [4, 10, 36, 258, 603]
    assert both[0].shape == (3, 9, 96)
    assert (both[0] - both[1]).abs().max() < 2e-4 * both[0].abs().max()


def test_a_prompt_in_pieces_and_its_hidden_states(decoders: tuple[Decoder, Decoder]) -> None:
    """Two prompts at once, one of them with an adapter, then the second half of one."""
    ours = adapter(decoders[0], 3, 1)
    both = []
    for decoder in decoders:
        first, second = cache_of(decoder), cache_of(decoder)
        chunks = [
            Chunk(ids(20, 1), first, None, num_logits=2, hidden_layer=0),
            Chunk(ids(9, 2), second, ours, num_logits=9, hidden_layer=1),
        ]
        logits = [decoder.forward(chunks).clone(), decoder.forward([Chunk(ids(30, 3), first, ours, 30)])]
        hidden = [chunk.hidden for chunk in chunks if chunk.hidden is not None]
        assert len(hidden) == 2
        both.append((torch.cat(logits), torch.cat(hidden)))
    for plain, recording in zip(*both, strict=True):
        assert torch.allclose(plain, recording, atol=2e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("count", [1, 20])
def test_one_adapter_of_many_ranks(decoders: tuple[Decoder, Decoder], count: int) -> None:
    """More ranks than are usual, and more rows than one group of an adapter holds."""
    large = adapter(decoders[0], 70, 5)
    small = adapter(decoders[0], 2, 6)
    both = []
    for decoder in decoders:
        rows = [Chunk([3 + row], cache_of(decoder), large if row < 17 else small) for row in range(count)]
        both.append(decoder.forward(rows).clone())
    assert torch.allclose(*both, atol=2e-4 * float(both[0].abs().max()))


def test_more_rows_than_a_recording_holds(decoders: tuple[Decoder, Decoder]) -> None:
    both = [
        decoder.forward([Chunk([3 + row % 90], cache_of(decoder), None) for row in range(70)])
        for decoder in decoders
    ]
    assert torch.allclose(*both, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card whose queue can lag behind")
def test_rows_are_not_rewritten_while_their_copy_waits(decoders: tuple[Decoder, Decoder]) -> None:
    """The card is kept busy, so that the first rows' copy is still queued when the next are placed."""
    chunks = [[Chunk([3 + row % 90], cache_of(decoder), None) for row in range(150)] for decoder in decoders]
    plain, recording = decoders
    expected_RV = plain.forward(chunks[0])
    recording.forward([Chunk([3], cache_of(recording), None) for _ in range(64)])  # recorded beforehand
    recording.forward([Chunk([3], cache_of(recording), None) for _ in range(22)])
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    assert torch.allclose(recording.forward(chunks[1]), expected_RV, atol=1e-4)


def test_an_adapter_gives_way_to_one_used_later(
    decoders: tuple[Decoder, Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three slots, the fourth adapter takes the place of the first, which comes back later."""
    plain, recording = decoders
    monkeypatch.setattr(graphs, "_SLOTS", 3)
    recording._graphs = graphs.recorded(recording)
    many = [adapter(plain, 1, seed) for seed in range(4)]
    for each in [*many, many[0], many[3], None, Adapter()]:
        both = [decoder.forward([Chunk([9], cache_of(decoder), each)]).clone() for decoder in decoders]
        assert torch.allclose(*both, atol=1e-4)
    recording.forget(many[3])
    recording.forget(many[2])  # has given way already
    assert len(recording._graphs._slots._free) == 1
    assert all(held[1] is not many[3] for held in recording._graphs._slots._held.values())
