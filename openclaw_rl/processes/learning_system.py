"""The wired learning side: jobs that run concurrently until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.sinks import Fan
from openclaw_rl.types import Engine, Judge, Renderer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, as the learn process accesses it."""

    engine: Engine
    path: Path
    renderer: Renderer
    encode: Callable[[str], list[int]]
    """Token ids of a text, without special tokens."""


@dataclass(frozen=True, slots=True)
class LearningSystem:
    judge: Judge
    sinks: Fan
    jobs: Sequence[Callable[[], Awaitable[None]]]

    async def run(self) -> None:
        """Run until cancelled, or until one of the jobs fails."""
        await asyncio.gather(*(job() for job in self.jobs))

    async def close(self) -> None:
        self.sinks.close()
        await self.judge.close()
