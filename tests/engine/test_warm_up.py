"""What runs at the start on a GPU works on any decoder and leaves it as it was."""

from __future__ import annotations

from pathlib import Path

import torch

from openclaw_rl.engine.model import Chunk, Decoder
from openclaw_rl.engine.warm_up import warm_up
from openclaw_rl.engine.weights import read_checkpoint


def test_a_warm_decoder_computes_the_same(model_path: Path) -> None:
    decoder = Decoder(read_checkpoint(model_path), torch.device("cpu"), torch.float32)

    def logits() -> torch.Tensor:
        return decoder.forward([Chunk([1, 2, 3], decoder.new_cache(), None)])

    before = logits()
    warm_up(decoder, None)
    assert torch.equal(logits(), before)
