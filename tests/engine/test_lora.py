"""Reading an adapter: joined on a GPU, it is what it is when joined on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openclaw_rl.engine.lora import _Part, _places, beside_decoding, join_in_numpy, join_on_device


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_both_ways_to_join_give_the_same(missing: int | None) -> None:
    rng = np.random.default_rng(0)
    widths = [12, 4, 4]
    parts = [
        None if n == missing else _Part(
            rng.standard_normal((2 + n, 8)).astype(np.float16),
            rng.standard_normal((width, 2 + n)).astype(np.float16),
            1.5,
        )
        for n, width in enumerate(widths)
    ]  # fmt: skip
    places = _places(parts, widths)
    device = torch.device("cpu")
    for one, other in zip(
        join_in_numpy(parts, places, sum(widths), device),
        join_on_device(parts, places, sum(widths), device),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_on_a_cpu_nothing_is_awaited() -> None:
    with beside_decoding(torch.device("cpu")):
        assert torch.ones(1).item() == 1
