"""Nobody waits for ever for an engine that was closed, or that could not do what it was told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.testing import tiny_model, until
from openclaw_rl.types import GenerateRequest, SamplingParams, ScoreRequest, Token


def engine_of(folder: Path) -> LocalEngine:
    options = LocalEngineOptions(device="cpu", dtype="fp32", kernel="float", max_running=1)
    return LocalEngine(tiny_model(folder), options)


async def generate(engine: LocalEngine, number: int) -> list[Token]:
    return [token async for token in engine.generate(GenerateRequest([1, 2, 3], SamplingParams(number)))]


async def test_requests_that_run_wait_or_come_too_late_are_told(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    asked = [asyncio.create_task(generate(engine, 100_000)) for _ in range(3)]
    await until(lambda: engine.status().num_waiting == 2, "two wait")
    await engine.close()
    told = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert {str(each) for each in told} == {"the engine was closed"}
    with pytest.raises(RuntimeError, match="was closed"):
        await asyncio.wait_for(engine.score(ScoreRequest([1, 2, 3], 1)), 60)


async def test_an_order_that_fails_does_not_end_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(tmp_path)

    def broken() -> None:
        raise MemoryError("no memory")

    engine._inbox.put(broken)
    assert len(await asyncio.wait_for(generate(engine, 4), 60)) == 4
    assert "no memory" in caplog.text
    await engine.close()
