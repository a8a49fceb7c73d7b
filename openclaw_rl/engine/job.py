"""One sequence in the engine's queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from openclaw_rl.engine.kv import Reader, SequenceCache
from openclaw_rl.engine.lora import Adapter
from openclaw_rl.engine.model import Network
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.types import GenerateRequest, Priority, Scores, Token

if TYPE_CHECKING:
    from openclaw_rl.engine.grammar import GrammarState


@dataclass(eq=False, slots=True)
class Job:
    """One sequence being run: a generation (has a sampler) or a scoring (has none)."""

    ids: list[int]
    version: int
    adapter: Adapter | None
    decoder: Network | None
    """For a version with full weights; None is the base decoder."""
    priority: Priority
    max_length: int
    emit: Callable[[Token | Scores | Exception], None]
    reader: Reader = field(default_factory=Reader)
    request: GenerateRequest | None = None
    sampler: Sampler | None = None
    grammar: GrammarState | None = None
    targets: list[int] = field(default_factory=list)
    """Scoring: ``targets[i]`` is the token that position ``i`` must predict."""
    score_start: int = 0
    """Scoring: the first position to score; ``len(ids)`` if only the hidden state is asked for."""
    top_k: int = 0
    hidden_layer: int | None = None
    hidden: torch.Tensor | None = None
    cancelled: bool = False
    cache: SequenceCache | None = None
    candidates_NK: torch.Tensor | None = None
    """Scoring: further tokens to score, one row per scored position."""
    scored: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        return len(self.ids) - (self.cache.length if self.cache else 0)

    @property
    def reusable_prefix(self) -> int:
        """At least one token must run to get logits; scoring needs the logits of all scored positions."""
        last = len(self.ids) - 1
        return last if self.sampler else min(self.score_start, last)
