"""Families without a fast path run through transformers' modules, exactly, whatever else is in the row."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.types import ScoreRequest, Token, Weights
from tests.engine.conftest import run_generation
from tests.networks import FAMILIES, VOCAB, make_adapter, make_network, make_seeing_network

#: Small pieces, so that prompts are read in several.
OPTIONS = LocalEngineOptions(device="cpu", dtype="fp32", chunk_tokens=16, idle_chunk_tokens=16, num_threads=1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Reference = Callable[[Sequence[int], int], torch.Tensor]


def plain(network: Path, adapter: Path) -> Reference:
    """Raw log-probs of one sequence, by transformers' eager attention and PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(network, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter).eval()

    @torch.inference_mode()
    def run(ids: Sequence[int], version: int) -> torch.Tensor:
        tensor = torch.tensor([list(ids)])
        if version:
            return model(tensor, use_cache=False).logits[0].log_softmax(-1)
        with model.disable_adapter():
            return model(tensor, use_cache=False).logits[0].log_softmax(-1)

    return run


def check(prompt: Sequence[int], tokens: Sequence[Token], version: int, reference: Reference) -> None:
    rows_TV = reference([*prompt, *(token.id for token in tokens)], version)[len(prompt) - 1 : -1]
    for row_V, token in zip(rows_TV, tokens, strict=True):
        assert abs(float(row_V[token.id]) - token.logprob) < 1e-3
        top = torch.tensor(token.top_logprobs)
        assert torch.allclose(row_V[torch.tensor(token.top_ids)], top, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
async def test_family_is_exact(family: str, tmp_path: Path) -> None:
    network = make_network(family, tmp_path / "network")
    adapter = make_adapter(network, tmp_path / "adapter", 1)
    reference = plain(network, adapter)
    engine = LocalEngine(network, OPTIONS)
    await engine.load(Weights.in_folder(1, adapter))
    rng = random.Random(family)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (41, 3, 20, 1, 33)]

    # Prompts in pieces beside replies, with and without an adapter.
    replies = await asyncio.gather(
        *(run_generation(engine, p, version=i % 2, seed=i, max_tokens=9) for i, p in enumerate(prompts))
    )
    for i, (prompt, tokens) in enumerate(zip(prompts, replies, strict=True)):
        check(prompt, tokens, i % 2, reference)

    # The next turn, a branch of the same prompt, and a prompt that was cut short.
    turns = [
        [*prompts[0], *(token.id for token in replies[0]), *prompts[2]],
        [*prompts[0][:35], *prompts[1]],
        [*prompts[0][:-1]],
    ]
    for prompt in turns:
        check(prompt, await run_generation(engine, prompt, seed=7, max_tokens=5), 0, reference)
    assert engine.status().cached_tokens < sum(map(len, [*prompts, *turns])) + 100

    for version in (0, 1):
        ids = turns[0]
        scores = await engine.score(ScoreRequest(ids, 30, policy_version=version))
        expected = reference(ids, version)[29:-1].gather(1, torch.tensor(ids[30:]).unsqueeze(1))[:, 0]
        assert torch.allclose(torch.tensor(scores.logprobs), expected, atol=1e-3)
    await engine.close()


async def test_recurrent_states_are_reused_where_they_were_kept(tmp_path: Path) -> None:
    """A state cannot be cut short, so a prompt that leaves another's path goes on from the last one kept."""
    network = make_network("Qwen3_5ForCausalLM", tmp_path)
    engine = LocalEngine(network, OPTIONS)
    prompt = [i % VOCAB for i in range(50)]
    await run_generation(engine, prompt, max_tokens=4)
    pool = engine._scheduler.pool
    [cache] = pool._caches
    assert [cache.reusable(n) for n in (53, 50, 49, 20, 3)] == [53, 50, 48, 16, 0]
    await run_generation(engine, [*prompt[:40], 5, 6, 7], max_tokens=1)
    assert sorted(cache.length for cache in pool._caches) == [43, 53]
    await engine.close()


async def test_hidden_states_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = make_network("Gemma3ForCausalLM", tmp_path)
    engine = LocalEngine(network, OPTIONS)
    ids = [i * 7 % VOCAB for i in range(30)]
    model = AutoModelForCausalLM.from_pretrained(network, dtype=torch.float32)
    with torch.inference_mode():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    scores = await engine.score(ScoreRequest(ids, len(ids) - 1, hidden_layer=1))
    assert scores.hidden == pytest.approx(states[2][0, -2].tolist(), abs=1e-3)
    await engine.close()


async def test_all_weights_of_a_family_load_beside(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base, other = (make_network("Qwen3MoeForCausalLM", tmp_path / str(n)) for n in range(2))
    model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    model.save_pretrained(other)
    engine = LocalEngine(base, OPTIONS)
    await engine.load(Weights.in_folder(3, other))
    prompt = [i % VOCAB for i in range(20)]
    tokens = await run_generation(engine, prompt, version=3, max_tokens=3)
    with torch.inference_mode():
        rows = model(torch.tensor([[*prompt, *(t.id for t in tokens)]])).logits[0].log_softmax(-1)
    got = [float(rows[19 + i][token.id]) for i, token in enumerate(tokens)]
    assert [token.logprob for token in tokens] == pytest.approx(got, abs=1e-3)
    await engine.close()


@pytest.mark.parametrize(
    ("family", "numbers", "why"),
    [
        (
            "Lfm2ForCausalLM",
            {"layer_types": ["conv", "full_attention", "conv"]},
            "kind that we do not know, conv",
        ),
        ("MambaForCausalLM", {"num_attention_heads": None}, "describes no decoder with attention"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    tmp_path: Path, family: str, numbers: dict[str, object], why: str
) -> None:
    network = make_network(family, tmp_path, **numbers)
    with pytest.raises(ValueError, match=rf"cannot run {family}.*{why}.*--engine"):
        LocalEngine(network, OPTIONS)


def test_low_precision_kernels_are_for_the_fast_path(tmp_path: Path) -> None:
    network = make_network("PhiForCausalLM", tmp_path)
    with pytest.raises(ValueError, match="--kernel auto"):
        LocalEngine(network, LocalEngineOptions(device="cpu", kernel="native"))


@pytest.mark.parametrize("family", ["Qwen3_5ForConditionalGeneration", "Gemma3ForConditionalGeneration"])
async def test_the_text_of_a_model_that_sees(family: str, tmp_path: Path) -> None:
    import transformers

    network = make_seeing_network(family, tmp_path / "network")
    adapter = make_adapter(network, tmp_path / "adapter", 1)
    engine = LocalEngine(network, OPTIONS)
    await engine.load(Weights.in_folder(1, adapter))
    prompt = [i * 5 % VOCAB for i in range(40)]
    base, adapted = [
        await run_generation(engine, prompt, max_tokens=4, version=version) for version in (0, 1)
    ]
    whole = getattr(transformers, family).from_pretrained(network, dtype=torch.float32)
    with torch.inference_mode():
        rows_TV = whole(input_ids=torch.tensor([[*prompt, *(t.id for t in base)]])).logits[0].log_softmax(-1)
    expected = [float(rows_TV[39 + i][token.id]) for i, token in enumerate(base)]
    assert [token.logprob for token in base] == pytest.approx(expected, abs=1e-3)
    assert adapted[0].top_logprobs != base[0].top_logprobs
    await engine.close()
