"""A tiny random network of the default model's kind, and samples of ragged lengths."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.testing.examples import make_example
from openclaw_rl.types import Example, SamplingParams, Token, TurnRecord

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


def make_turn(number: int, prompt: int, reply: int, version: int = 0) -> TurnRecord:
    """Tokens and log-probs drawn from the number."""
    rng = random.Random(number)
    tokens = [Token(rng.randrange(VOCAB), -rng.uniform(1, 5), -1.0, (), (), version) for _ in range(reply)]
    return TurnRecord(
        f"t{number}", "s", "ann", "chat", "main", [], None, {}, {},
        [rng.randrange(VOCAB) for _ in range(prompt)],
        tokens, SamplingParams(64), version, "stop", float(number),
    )  # fmt: skip


def make_item(
    number: int, prompt: int, reply: int, score: int = 1, columns: int = 1, version: int = 0
) -> Example:
    """The turn of that number, with other candidates and signals drawn from it."""
    turn, rng = make_turn(number, prompt, reply, version), random.Random(-1 - number)
    others = [[rng.randrange(VOCAB) for _ in range(columns - 1)] for _ in range(reply)]
    rows = list(zip(turn.tokens, others, strict=True))
    return make_example(
        turn,
        score,
        np.array([[token.id, *row] for token, row in rows], np.int32),
        np.array([[token.logprob, *(-rng.uniform(1, 5) for _ in row)] for token, row in rows], np.float32),
        np.array([[rng.uniform(-1, 1) for _ in range(columns)] for _ in rows], np.float32),
    )


@pytest.fixture
def ragged() -> list[Example]:
    shapes = [(5, 3), (40, 11), (17, 1), (9, 30), (23, 8)]
    return [make_item(n, p, r, columns=1 + 4 * (n % 2)) for n, (p, r) in enumerate(shapes)]
