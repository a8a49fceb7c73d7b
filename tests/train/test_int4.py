"""Adapters on a base in 4 bits learn as well as on one in fp32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from openclaw_rl.engine.frozen import Int4Linear, int4_linear
from openclaw_rl.train.local import FrozenLinear, LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.packed import pack
from openclaw_rl.types import Batch
from tests.networks import make_network
from tests.train.conftest import make_item
from tests.train.test_local import OPTIONS

STEPS, SEEDS = 8, 3


def gained(network: Path, seed: int, frozen_linear: FrozenLinear | None) -> float:
    """How much likelier a few steps make the replies of a seed's samples, in nats a token."""
    options = replace(OPTIONS, seed=seed, learning_rate=3e-3, micro_batch_tokens=512)
    trainer = LocalTrainer(network, options, frozen_linear)
    items = [make_item(100 * seed + n, 12, 6) for n in range(4)]
    items = [replace(i, signal_NK=abs(i.signal_NK) * 0 + 1, old_NK=i.old_NK * 0 + 1) for i in items]
    [row] = pack(items, 512, trainer.device)
    before = float(trainer._logprobs(row).detach().mean())
    for step in range(STEPS):
        trainer.step(Batch(items), step)
    return float(trainer._logprobs(row).detach().mean()) - before


def test_learns_as_well_as_in_full_precision(tmp_path: Path) -> None:
    network = make_network("LlamaForCausalLM", tmp_path)
    full = [gained(network, seed, None) for seed in range(SEEDS)]
    packed = [gained(network, seed, int4_linear) for seed in range(SEEDS)]
    # The mean's interval at 95 %, of three seeds.
    interval = 4.3 * stdev(full) / SEEDS**0.5
    assert min(full) > 0.1
    assert mean(packed) > mean(full) - interval


def test_the_layers_under_adapters_are_packed(tmp_path: Path) -> None:
    network = make_network("LlamaForCausalLM", tmp_path)
    trainer = LocalTrainer(network, OPTIONS, int4_linear)
    layers = [m for m in trainer._model.modules() if isinstance(m, Int4Linear)]
    assert len(layers) == 3 * 7


def test_all_weights_are_not_trained_in_four_bits() -> None:
    with pytest.raises(ValueError, match="is for adapters"):
        LocalTrainerOptions(finetune="full", train_base="int4")
