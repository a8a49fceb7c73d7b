"""Constrained sampling: which tokens a grammar allows next.

Built on llguidance, which answers in microseconds per token without precomputing the grammar.
The token table is made once per model, at the first request that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask


class Grammars:
    """Makes grammar states for one model's vocabulary. Thread-safe."""

    def __init__(self, model: Path, vocab: int, eos_ids: Iterable[int]) -> None:
        self._model, self._vocab, self._eos_ids = model, vocab, sorted(eos_ids)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        text = (self._model / "tokenizer.json").read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=self._vocab, eos_token=self._eos_ids)

    def check(self, grammar: str) -> None:
        """Raises ValueError that says what is wrong with the grammar or schema."""
        if problem := LLMatcher.validate_grammar(grammar, self._tokenizer):
            raise ValueError(problem.strip())

    def start(self, grammar: str) -> GrammarState:
        return GrammarState(LLMatcher(self._tokenizer, grammar, log_level=0), self._vocab)


class GrammarState:
    """Where one reply stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._mask = allocate_token_bitmask(1, vocab)

    def allowed(self) -> torch.Tensor:
        """A boolean per token; never all false."""
        fill_next_token_bitmask(self._matcher, self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._vocab]
        allowed_V = torch.from_numpy(bits).bool()
        if self._matcher.is_error() or not allowed_V.any():
            raise RuntimeError(f"the grammar allows no token: {self._matcher.get_error()}")
        return allowed_V

    def consume(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            raise RuntimeError(f"the grammar refused token {token_id}: {self._matcher.get_error()}")
