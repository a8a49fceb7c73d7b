"""Sampling on a GPU against the distributions of ``sampling.py``; without one in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton", reason="pip install triton, or make test-gpu")

from openclaw_rl.engine import gpu_sampler
from openclaw_rl.engine.gpu_sampler import GpuSampler
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.types import SamplingParams

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 5000
KINDS = {
    "as it is": {},
    "colder": {"temperature": 0.7},
    "default": {"temperature": 0.7, "top_p": 0.9},
    "a few": {"temperature": 0.3, "top_p": 0.5},
    "nearly all": {"top_p": 0.999},
    "least probability": {"temperature": 1.3, "min_p": 0.05},
    "both cuts": {"min_p": 0.01, "top_p": 0.8},
    "the likeliest": {"temperature": 0.0},
    "one": {"top_p": 0.0001},
    "the first five": {"top_k": 5},
    "recommended": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "all cuts": {"temperature": 1.5, "top_k": 10, "top_p": 0.7, "min_p": 0.02},
}


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2).to(DEVICE)


def sampler(seed: int, **params: float) -> Sampler:
    return Sampler(SamplingParams(1, seed=seed, **params))  # type: ignore[arg-type]


def reference(logits_V: torch.Tensor, each: Sampler, uniform: float) -> tuple[int, float]:
    """The token by inverting the truncated distribution in the order of ids, and its log-prob there."""
    if each.params.temperature == 0:
        return int(logits_V.argmax()), 0.0
    scaled_V = torch.log_softmax(logits_V.double().cpu() / each.params.temperature, -1)
    kept, logprobs = each._truncate(scaled_V)
    whole_V = torch.full_like(scaled_V, float("-inf"))
    whole_V[slice(None) if kept is None else kept] = logprobs
    cumulative_V = whole_V.exp().cumsum(0)
    token = int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1]))
    return token, float(whole_V[token])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_log_probs(kind: str) -> None:
    logits_RV = logits(3)
    samplers, twins = ([sampler(seed, **KINDS[kind]) for seed in range(3)] for _ in range(2))
    on_gpu = GpuSampler(DEVICE)
    for _ in range(3 if DEVICE.type == "cuda" else 1):  # launched, recorded, replayed
        on_gpu.start(logits_RV, samplers, 8)
        raw_RV = torch.log_softmax(logits_RV.double(), -1).cpu()
        for row, drawn in enumerate(on_gpu.finish()):
            token, logprob = reference(logits_RV[row], twins[row], float(twins[row].uniform()))
            assert drawn.id == token
            assert drawn.logprob == pytest.approx(float(raw_RV[row, token]), abs=1e-5)
            assert drawn.sampled_logprob == pytest.approx(logprob, abs=1e-4)
            values, ids = raw_RV[row].topk(8)
            assert drawn.top_ids == ids.tolist()
            assert drawn.top_logprobs == pytest.approx(values.tolist(), abs=1e-5)


def test_a_seed_gives_the_same_token_in_any_batch() -> None:
    """Seventy rows of all kinds at once, and each of them alone."""
    logits_RV, kinds = logits(70)[:, :500].contiguous(), list(KINDS.values())
    on_gpu = GpuSampler(DEVICE)
    on_gpu.start(logits_RV, [sampler(row, **kinds[row % len(kinds)]) for row in range(70)], 3)
    together = on_gpu.finish()
    for row in (0, 2, 68, 69):
        on_gpu.start(logits_RV[row : row + 1], [sampler(row, **kinds[row % len(kinds)])], 3)
        assert on_gpu.finish() == [together[row]]


def test_more_rows_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sampler, "_ROWS", 2)
    on_gpu = GpuSampler(DEVICE)
    on_gpu.start(logits(1).expand(5, VOCAB).contiguous(), [sampler(7) for _ in range(5)], 1)
    drawn = on_gpu.finish()
    assert len(drawn) == 5
    assert all(each == drawn[0] for each in drawn)


def test_frequencies_follow_probabilities() -> None:
    logits_RV = torch.tensor([[0.0, 2.0, 1.0, -1.0, 0.5]], device=DEVICE)
    one, on_gpu, counts = sampler(3, temperature=0.8, top_p=0.9), GpuSampler(DEVICE), torch.zeros(5)
    for _ in range(60):
        on_gpu.start(logits_RV.expand(20, 5).contiguous(), [one] * 20, 1)
        for drawn in on_gpu.finish():
            counts[drawn.id] += 1
    kept, logprobs = one._truncate(torch.log_softmax(logits_RV[0].cpu() / 0.8, -1))
    assert kept is not None
    assert torch.allclose(counts[kept] / 1200, logprobs.exp(), atol=0.05)
    assert counts.sum() == counts[kept].sum()


def test_equal_logits_are_kept_or_dropped_together() -> None:
    logits_RV = torch.zeros(1, 3000, device=DEVICE)
    on_gpu = GpuSampler(DEVICE)
    on_gpu.start(logits_RV, [sampler(1, top_p=0.5)], 4)
    (drawn,) = on_gpu.finish()
    assert drawn.sampled_logprob == pytest.approx(-8.00637, abs=1e-4)
    assert drawn.top_ids == [0, 1, 2, 3]
