"""Drawing for many rows at once gives each request what it would have drawn alone."""

from __future__ import annotations

import torch

from openclaw_rl.engine.sampling import Sampler, draw_raw
from openclaw_rl.types import SamplingParams


def sampler(seed: int, **params: float) -> Sampler:
    return Sampler(SamplingParams(1, seed=seed, **params))  # type: ignore[arg-type]


def rows(count: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.log_softmax(3 * torch.randn(count, 1000), dim=-1)


def test_a_batch_draws_what_each_would_draw_alone() -> None:
    raw_RV = rows(6)
    together = draw_raw(raw_RV, [None if i == 2 else sampler(i) for i in range(6)])
    alone = [sampler(i).sample(raw_RV[i], [], [], None).id for i in range(6)]
    assert together == [None if i == 2 else alone[i] for i in range(6)]


def test_draws_follow_the_distribution() -> None:
    raw_V = torch.tensor([0.5, 0.0, 0.3, 0.2]).log()
    draws = draw_raw(raw_V.expand(4000, 4), [sampler(i) for i in range(4000)])
    shares = [draws.count(token) / 4000 for token in range(4)]
    assert shares[1] == 0
    assert all(abs(a - b) < 0.04 for a, b in zip(shares, [0.5, 0, 0.3, 0.2], strict=True))


def test_only_an_unchanged_distribution_is_raw() -> None:
    assert sampler(0, temperature=1.0).is_raw
    assert not sampler(0, temperature=0.7).is_raw
    assert not sampler(0, temperature=1.0, top_p=0.9).is_raw
    assert not sampler(0, temperature=1.0, top_k=5).is_raw
