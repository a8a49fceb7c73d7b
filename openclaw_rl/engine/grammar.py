"""Constrained sampling: which tokens a grammar allows next.

Built on llguidance, which answers in microseconds per token without precomputing the grammar.
The token table is made once per model, at the first request that needs it.

A JSON reply that is cut off in the middle cannot be parsed. So when few tokens are left, only tokens that
close a string, a list or an object are allowed, wherever the grammar permits one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from openclaw_rl.errors import GrammarFailed

#: Tokens that end a JSON value, best first: inside a string, and outside, where a quote only opens another.
_IN_TEXT = (re.compile(rb'"[}\]]*'), re.compile(rb'"[}\]]*,.?"?'))
_OUTSIDE = (re.compile(rb"[}\]]+"), re.compile(rb"[}\]]*,.?"), re.compile(rb'"'))
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
#: Fewest tokens reserved for closing a reply, however low its token limit.
_MIN_LANDING = 16
#: Stripped from llguidance's errors: its listing of the grammar, and the position before the problem.
_LISTING = re.compile(r"\n +1 \| .*", re.DOTALL)
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to \w+ JSON schema: )?")


class Grammars:
    """Makes grammar states for one model's vocabulary. Thread-safe."""

    def __init__(self, model: Path, vocab: int, eos_ids: Iterable[int]) -> None:
        self._model, self._vocab, self._eos_ids = model, vocab, sorted(eos_ids)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        text = (self._model / "tokenizer.json").read_text(encoding="utf-8")
        return LLTokenizer(text, n_vocab=self._vocab, eos_token=self._eos_ids)

    def check(self, grammar: str) -> None:
        """Raises ValueError with the problem if the grammar or schema is invalid."""
        if problem := LLMatcher.validate_grammar(grammar, self._tokenizer):
            raise ValueError(_PLACE.sub("", _LISTING.sub("", problem)).strip())

    def start(self, grammar: str, max_tokens: int) -> GrammarState:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        return GrammarState(matcher, self._table, max(_MIN_LANDING, max_tokens // 4))

    @cached_property
    def _table(self) -> _Table:
        written = [self._tokenizer.decode_bytes([token_id]) for token_id in range(self._vocab)]

        def are(*endings: re.Pattern[bytes]) -> list[torch.Tensor]:
            return [torch.tensor([bool(ending.fullmatch(text)) for text in written]) for ending in endings]

        end_V = torch.zeros(self._vocab, dtype=torch.bool)
        end_V[self._eos_ids] = True
        return _Table(written, {True: are(*_IN_TEXT), False: [end_V, *are(*_OUTSIDE)]})


@dataclass(frozen=True, slots=True)
class _Table:
    written: list[bytes]
    endings: dict[bool, list[torch.Tensor]]
    """Inside a string (True) and outside: for each pattern that ends a value, a boolean per token."""


class GrammarState:
    """One reply's position in its grammar."""

    def __init__(self, matcher: LLMatcher, table: _Table, landing: int) -> None:
        """``landing``: with this many tokens left, plus two per open list or object, values are closed."""
        self._matcher, self._table, self._landing = matcher, table, landing
        self._vocab = len(table.written)
        self._mask = allocate_token_bitmask(1, self._vocab)
        self._in_text, self._depth = False, 0

    def allowed(self, num_left: int) -> torch.Tensor:
        """A boolean per token of the vocabulary; never all false."""
        fill_next_token_bitmask(self._matcher, self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._vocab]
        allowed_V = torch.from_numpy(bits).bool()
        if self._matcher.is_error() or not allowed_V.any():
            raise GrammarFailed
        if num_left > self._landing + 2 * self._depth:
            return allowed_V
        ends = (allowed_V & ending_V for ending_V in self._table.endings[self._in_text])
        return next((end_V for end_V in ends if end_V.any()), allowed_V)

    def consume(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            raise GrammarFailed
        for number, piece in enumerate(_ESCAPED.sub(b"", self._table.written[token_id]).split(b'"')):
            self._in_text ^= bool(number)
            if not self._in_text:
                self._depth += sum(piece.count(mark) for mark in (b"[", b"{"))
                self._depth -= sum(piece.count(mark) for mark in (b"]", b"}"))
