"""The distribution sampled from, computed from raw log-probs of the likeliest tokens."""

from __future__ import annotations

import math

import pytest
import torch

from openclaw_rl.engine.sampled_from import SampledFrom, bounded
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.types import SamplingParams

VOCAB = 4000
#: Where what is not told has no share, or the temperature leaves it as it is.
EXACT = [
    SamplingParams(9),
    SamplingParams(9, top_k=20),
    SamplingParams(9, temperature=0.3, top_k=1),
    SamplingParams(9, temperature=1.5, top_k=50),
    SamplingParams(9, temperature=0.2, top_p=0.9),
    SamplingParams(9, temperature=1.0, top_p=0.5),
    SamplingParams(9, temperature=1.2, min_p=0.1),
    SamplingParams(9, temperature=0.4, top_k=30, top_p=0.8, min_p=0.02),
    SamplingParams(9, temperature=0.5, top_k=40, logit_bias={"3": 2.0, "5": -4.0}),
    SamplingParams(9, temperature=0.0),
]


def text_like(seed: int) -> torch.Tensor:
    """Shares that fall with the rank as those of words do, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    noise = 0.5 * torch.randn(VOCAB, generator=generator)
    logits = -1.5 * torch.log(torch.arange(1, VOCAB + 1).float()) + noise
    return torch.log_softmax(logits, -1)


def error(params: SamplingParams, seed: int) -> float:
    """The largest difference to the embedded engine's arithmetic over the whole vocabulary, in nats."""
    sampler, drawn, worst = Sampler(params), SampledFrom(params, VOCAB), 0.0
    for step in range(4):
        raw = text_like(seed + step)
        best = raw.topk(drawn.num_needed)
        top = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        sampled = sampler.sample(raw, raw.topk(8).indices.tolist(), [], None)
        worst = max(worst, abs(drawn.logprob(sampled.id, sampled.logprob, top) - sampled.sampled_logprob))
    return worst


@pytest.mark.parametrize("params", EXACT, ids=str)
def test_it_is_exact_where_the_rest_is_cut_off_or_known(params: SamplingParams) -> None:
    assert max(error(params, seed) for seed in range(0, 12, 4)) < 1e-4


@pytest.mark.parametrize(
    ("params", "bound"),
    [
        (SamplingParams(9, temperature=0.5), 2e-3),
        (SamplingParams(9, temperature=0.8), 0.02),
        (SamplingParams(9, temperature=1.3), 0.05),
        (SamplingParams(9, presence_penalty=0.7, frequency_penalty=0.4), 2e-3),
    ],
    ids=str,
)
def test_elsewhere_it_is_a_close_estimate(params: SamplingParams, bound: float) -> None:
    assert max(error(params, seed) for seed in range(0, 12, 4)) < bound


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(9, temperature=0.8),
        SamplingParams(9, temperature=0.8, top_p=0.95),
        SamplingParams(9, temperature=1.3),
        SamplingParams(9, temperature=1.5, min_p=0.001),
        SamplingParams(9, top_p=0.99),
        SamplingParams(9, temperature=1.2, top_k=300),
        SamplingParams(9, temperature=0.9, presence_penalty=0.7, frequency_penalty=0.4),
        SamplingParams(9, temperature=0.9, logit_bias={"3": -4.0}),
    ],
    ids=str,
)
def test_drawn_from_the_likeliest_it_is_exact_everywhere(params: SamplingParams) -> None:
    assert max(error(bounded(params), seed) for seed in range(0, 12, 4)) < 1e-4


def test_what_is_told_whole_or_not_drawn_at_all_is_not_bounded() -> None:
    for params in (SamplingParams(9), SamplingParams(9, temperature=0.0, top_p=0.9)):
        assert bounded(params) == params
    assert bounded(SamplingParams(9, top_p=0.9)).top_k == 256
    assert bounded(SamplingParams(9, top_k=20)).top_k == 20
    assert bounded(SamplingParams(9, top_k=5000)).top_k == 512
    assert bounded(SamplingParams(9, temperature=0.7), most=20).top_k == 20


def test_nothing_more_is_asked_for_where_the_raw_ones_will_do() -> None:
    assert SampledFrom(SamplingParams(9), VOCAB).num_needed == 0
    assert SampledFrom(SamplingParams(9, temperature=0.0), VOCAB).num_needed == 0
    assert SampledFrom(SamplingParams(9, top_k=300), VOCAB).num_needed == 300
    assert SampledFrom(SamplingParams(9, top_p=0.9), 50).num_needed == 50


def test_a_sure_token_stays_at_zero() -> None:
    assert SampledFrom(SamplingParams(9, temperature=0.5), VOCAB).logprob(1, 0.0, {1: 0.0}) == 0.0
    assert math.isfinite(SampledFrom(SamplingParams(9, temperature=0.5), VOCAB).logprob(1, -30.0, {2: 0.0}))
