"""The embedded engine, and what each of its steps was: rows, prompt tokens, context, seconds.

    STEPS_FILE=steps openclaw-rl serve --engine steps:TracedEngine        with bench/ on PYTHONPATH

One line a step: when it ended (seconds since 1970), streams that got a token, tokens of a prompt, cached
tokens of the streams and of that prompt, seconds in all and in the forward pass, CPU seconds of the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from openclaw_rl.engine import EngineParts
from openclaw_rl.engine.job import Job
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.model import Chunk
from openclaw_rl.settings import extended


class TracedEngine(LocalEngine):
    capabilities = LocalEngine.capabilities

    def __init__(self, parts: EngineParts) -> None:
        settings = parts.settings
        super().__init__(parts.model, extended(LocalEngineOptions, settings, settings.engine_options))

    def _build(self) -> None:
        super()._build()
        trace(self._scheduler, os.environ["STEPS_FILE"])


def trace(scheduler: Any, path: str) -> None:
    """Wrap the scheduler's step and forward pass."""
    step, forward = scheduler.step, scheduler._forward
    file = open(path, "a", buffering=1)  # noqa: SIM115  open as long as the engine
    ran: list[tuple[int, ...]] = []
    forward_s: list[float] = []

    def noting(batch: Sequence[tuple[Job, int]], chunks: Sequence[Chunk]) -> Any:
        alone = [chunk for chunk in chunks if len(chunk.token_ids) == 1]
        prompts = [chunk for chunk in chunks if len(chunk.token_ids) > 1]
        cached = [sum(chunk.cache.length for chunk in each) for each in (alone, prompts)]
        ran.append((len(alone), sum(len(chunk.token_ids) for chunk in prompts), *cached))
        began = time.perf_counter()
        found = forward(batch, chunks)
        forward_s.append(time.perf_counter() - began)
        return found

    def timed() -> None:
        began, used = time.perf_counter(), time.process_time()
        step()
        took, cpu = time.perf_counter() - began, time.process_time() - used
        for what, seconds in zip(ran, forward_s, strict=True):
            print(f"{time.time():.4f}", *what, f"{took:.5f} {seconds:.5f} {cpu:.4f}", file=file)
        ran.clear()
        forward_s.clear()

    scheduler.step, scheduler._forward = timed, noting
