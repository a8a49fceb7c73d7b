"""Drawing for many rows at once gives each request what it would have drawn alone."""

from __future__ import annotations

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
