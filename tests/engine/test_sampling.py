"""Drawing for many rows at once gives each request what it would have drawn alone."""

from __future__ import annotations

import math

import pytest
import torch

from openclaw_rl.engine.sampling import Sampler, draw_whole
from openclaw_rl.types import SamplingParams


def sampler(seed: int, **params: float) -> Sampler:
    return Sampler(SamplingParams(1, seed=seed, **params))  # type: ignore[arg-type]


def rows(count: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.log_softmax(3 * torch.randn(count, 1000), dim=-1)


def test_a_batch_draws_what_each_would_draw_alone() -> None:
    raw_RV = rows(6)
    temperatures = [1.0, 0.5, 1.0, 2.0, 1.0, 0.1]
    together = draw_whole(
        raw_RV, [None if i == 2 else sampler(i, temperature=t) for i, t in enumerate(temperatures)]
    )
    assert together[2] is None
    for i, found in enumerate(together):
        if found is not None:
            alone = sampler(i, temperature=temperatures[i]).sample(raw_RV[i], [], [], None)
            assert found[0] == alone.id
            assert found[1] == alone.logprob
            assert abs(found[2] - alone.sampled_logprob) < 1e-5


def test_draws_follow_the_distribution() -> None:
    raw_V = torch.tensor([0.5, 0.0, 0.3, 0.2]).log()
    draws = [
        found[0] for found in draw_whole(raw_V.expand(4000, 4), [sampler(i) for i in range(4000)]) if found
    ]
    shares = [draws.count(token) / 4000 for token in range(4)]
    assert shares[1] == 0
    assert all(abs(a - b) < 0.04 for a, b in zip(shares, [0.5, 0, 0.3, 0.2], strict=True))


def test_a_distribution_of_which_something_is_cut_off_is_not_whole() -> None:
    assert sampler(0, temperature=1.0).is_whole
    assert sampler(0, temperature=0.7).is_whole
    assert not sampler(0, temperature=0.0).is_whole
    assert not sampler(0, temperature=1.0, top_p=0.9).is_whole
    assert not sampler(0, temperature=1.0, top_k=5).is_whole


def test_a_bias_changes_what_is_drawn_and_not_the_raw_log_prob() -> None:
    raw_V = torch.log_softmax(torch.tensor([2.0, 1.0, 0.0]), dim=-1)
    for temperature in (0.0, 1.0):
        params = SamplingParams(4, temperature=temperature, seed=1, logit_bias={"2": 100.0, "999": 100.0})
        sampled = Sampler(params).sample(raw_V, [0, 1], raw_V[:2].tolist(), None)
        assert sampled.id == 2
        assert sampled.logprob == pytest.approx(float(raw_V[2]))
        assert sampled.sampled_logprob == pytest.approx(0, abs=1e-5)


def test_what_was_said_is_penalised() -> None:
    """Two tokens of like chance, drawn without chance: each time the other one is likelier."""
    raw_V = torch.log_softmax(torch.tensor([1.0, 0.9, -5.0]), dim=-1)

    def drawn(**penalties: float) -> list[int]:
        sampler = Sampler(SamplingParams(8, temperature=0.0, **penalties))
        return [sampler.sample(raw_V, [0, 1], raw_V[:2].tolist(), None).id for _ in range(4)]

    assert drawn() == [0, 0, 0, 0]
    assert drawn(frequency_penalty=0.5) == [0, 1, 0, 1]
    assert drawn(presence_penalty=0.5) == [0, 1, 0, 0]


def test_min_p_cuts_off_what_is_unlikely_beside_the_likeliest() -> None:
    raw_V = torch.tensor([0.6, 0.3, 0.06, 0.04]).log()
    sampler = Sampler(SamplingParams(4, min_p=0.2, seed=3))
    assert not sampler.is_whole
    sampled = [sampler.sample(raw_V, [0], [float(raw_V[0])], None) for _ in range(200)]
    assert {one.id for one in sampled} == {0, 1}
    expected = {0: math.log(0.6 / 0.9), 1: math.log(0.3 / 0.9)}
    assert all(one.sampled_logprob == pytest.approx(expected[one.id], abs=1e-5) for one in sampled)
