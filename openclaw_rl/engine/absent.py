"""Placeholder engine for setups where another server answers (``--upstream``)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)

_WHY = "there is no engine here: another server answers (--upstream)"


class AbsentEngine:
    """Engine protocol; every call that needs a model raises ValueError."""

    capabilities = Capabilities(adapters=False, scores_candidates=False)
    context_length = 0

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        raise ValueError(_WHY)

    async def score(self, request: ScoreRequest) -> Scores:
        raise ValueError(_WHY)

    async def load(self, weights: Weights) -> None:
        raise ValueError(_WHY)

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        raise ValueError(_WHY)

    async def unload(self, version: int) -> None:
        raise ValueError(_WHY)

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0, 0, (BASE_VERSION,))

    async def close(self) -> None:
        """Nothing to release."""
