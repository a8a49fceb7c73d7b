"""Base of engines whose model is on a remote server: versions, scoring, and what they cannot do.

A server returns raw log-probs of a text's tokens and of the likeliest tokens at each position. How it is
queried is up to each engine.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from openclaw_rl.engine.loaded import LoadedVersions
from openclaw_rl.types import (
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    Priority,
    Scope,
    ScoreRequest,
    Scores,
)

H = TypeVar("H")
#: Limit on the likeliest tokens that servers score per position, besides those of the text itself.
MAX_TOP = 20


class RemoteServerEngine(ABC, Generic[H]):
    """The server-independent part of the Engine protocol; ``H`` is the server's handle for a version."""

    title: ClassVar[str]
    """Name in error messages."""
    capabilities: Capabilities
    context_length: int
    _versions: LoadedVersions[H]

    @abstractmethod
    async def _rows(self, held: H, ids: list[int], top_k: int, priority: Priority) -> list[dict[int, float]]:
        """For each token, its log-prob and those of the likeliest at its position; the first has none."""

    @abstractmethod
    async def _score_next(
        self, held: H, ids: list[int], candidates: list[int], priority: Priority
    ) -> dict[int, float]:
        """The log-prob of each candidate as the token after ``ids``."""

    def _accept(self, request: GenerateRequest) -> tuple[int, int]:
        """The version that answers, and how many tokens its reply may have."""
        version = self._versions.resolve(request.policy_version, request.scope)
        if request.grammar is not None:
            raise ValueError(f"the {self.title} engine follows no grammar; leave the reply free")
        room = min(request.sampling.max_tokens, self.context_length - len(request.prompt_ids))
        if room < 1:
            raise ValueError(f"a prompt of {len(request.prompt_ids)} tokens leaves no room for a reply")
        return version, room

    async def score(self, request: ScoreRequest) -> Scores:
        wanted = request.candidates or []
        self._check_score(request)
        version, ids = self._versions.resolve(request.policy_version), list(request.token_ids)
        most = min(MAX_TOP, max([request.top_k, *map(len, wanted)]))
        with self._versions.using(version) as held:
            told = (await self._rows(held, ids, most, request.priority))[request.start :]
            await self._fill(held, request, told)
        own = [row[token_id] for row, token_id in zip(told, ids[request.start :], strict=True)]
        best = [sorted(row, key=row.__getitem__, reverse=True)[: request.top_k] for row in told]
        scored = [_values(row, want) for row, want in zip(told, wanted, strict=True)] if wanted else None
        return Scores(own, best, [_values(*each) for each in zip(told, best, strict=True)], None, scored)

    def _check_score(self, request: ScoreRequest) -> None:
        if request.hidden_layer is not None:
            raise ValueError(f"the {self.title} engine gives no hidden states")
        if (request.top_k or request.candidates) and not self.capabilities.scores_candidates:
            raise ValueError(f"this {self.title} server does not score the likeliest tokens")
        if request.top_k > MAX_TOP:
            raise ValueError(f"the {self.title} engine scores the {MAX_TOP} likeliest tokens at most")

    async def _fill(self, held: H, request: ScoreRequest, told: list[dict[int, float]]) -> None:
        """Add to ``told`` the candidates that are not among the likeliest, scored position by position."""

        async def ask(position: int, missing: list[int]) -> None:
            ids = list(request.token_ids[: request.start + position])
            told[position] |= await self._score_next(held, ids, missing, request.priority)

        lacking = [
            (position, [each for each in dict.fromkeys(want) if each not in row])
            for position, (row, want) in enumerate(zip(told, request.candidates or [], strict=False))
        ]
        await asyncio.gather(*(ask(position, missing) for position, missing in lacking if missing))

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        self._versions.serve(version, scope)

    def status(self) -> EngineStatus:
        return self._versions.status()


def _values(row: dict[int, float], ids: Sequence[int]) -> list[float]:
    return [row[each] for each in ids]
