"""A tiny random network of the default model's kind, and samples of ragged lengths."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.types import BatchItem, Sample, SamplingParams, Token, TurnRecord

VOCAB = 97
# Networks this small are slower with more.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def make_item(
    number: int, prompt: int, reply: int, score: int = 1, columns: int = 1, version: int = 0
) -> BatchItem:
    """Tokens, old log-probs and signals drawn from the number."""
    rng = random.Random(number)
    tokens = [Token(rng.randrange(VOCAB), -rng.uniform(1, 5), -1.0, (), (), version) for _ in range(reply)]
    others = [[rng.randrange(VOCAB) for _ in range(columns - 1)] for _ in range(reply)]
    turn = TurnRecord(
        f"t{number}", "s", "ann", "chat", "main", [], None, {}, {},
        [rng.randrange(VOCAB) for _ in range(prompt)],
        tokens, SamplingParams(64), version, "stop", float(number),
    )  # fmt: skip
    sample = Sample(
        np.array([[t.id, *row] for t, row in zip(tokens, others, strict=True)], np.int32),
        np.array(
            [[t.logprob] + [-rng.uniform(1, 5) for _ in row] for t, row in zip(tokens, others, strict=True)],
            np.float32,
        ),
        np.array([[rng.uniform(-1, 1) for _ in range(columns)] for _ in tokens], np.float32),
    )
    return BatchItem(turn, sample, score)


@pytest.fixture
def ragged() -> list[BatchItem]:
    shapes = [(5, 3), (40, 11), (17, 1), (9, 30), (23, 8)]
    return [make_item(n, p, r, columns=1 + 4 * (n % 2)) for n, (p, r) in enumerate(shapes)]
