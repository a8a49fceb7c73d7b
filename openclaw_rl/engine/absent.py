"""No engine at all, where another server answers (``--upstream``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from openclaw_rl.types import (
    BASE_VERSION,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    ScoreRequest,
    Scores,
    Token,
)

_WHY = "there is no engine here: another server answers (--upstream)"


class AbsentEngine:
    """Engine protocol; whatever needs a model is refused."""

    capabilities = Capabilities(streaming=False, scores_top_k=False, adapters=False)
    context_length = 0

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        raise ValueError(_WHY)

    async def score(self, request: ScoreRequest) -> Scores:
        raise ValueError(_WHY)

    async def load(self, version: int, path: Path) -> None:
        raise ValueError(_WHY)

    async def serve_version(self, version: int) -> None:
        raise ValueError(_WHY)

    async def unload(self, version: int) -> None:
        raise ValueError(_WHY)

    def pick_version(self, prompt_ids: Sequence[int]) -> int:
        return BASE_VERSION

    def check_grammar(self, grammar: str) -> None:
        raise ValueError(_WHY)

    def status(self) -> EngineStatus:
        return EngineStatus(0, 0, 0, (BASE_VERSION,), BASE_VERSION)

    async def close(self) -> None:
        """Holds nothing."""
