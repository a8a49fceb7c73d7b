"""A request that gets no memory ends with an error; the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.engine.kv import SequenceCache
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.testing import tiny_model, until
from openclaw_rl.types import GenerateRequest, SamplingParams, ScoreRequest, Token


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(tiny_model(tmp_path), LocalEngineOptions(device="cpu", dtype="fp32", kernel="float"))
    yield engine
    await engine.close()


def break_once(engine: LocalEngine) -> None:
    pool = engine._scheduler.pool
    new = pool._new

    def broken() -> SequenceCache:
        pool._new = new
        raise MemoryError("cannot allocate 4 GB")

    pool._new = broken


async def generate(engine: LocalEngine, ids: list[int], number: int) -> list[Token]:
    return [token async for token in engine.generate(GenerateRequest(ids, SamplingParams(number)))]


async def test_the_request_ends_and_the_others_go_on(engine: LocalEngine) -> None:
    tokens: list[Token] = []

    async def stream() -> None:
        async for token in engine.generate(GenerateRequest([1, 2, 3], SamplingParams(200))):
            tokens.append(token)

    running = asyncio.create_task(stream())
    await until(lambda: bool(tokens), "the first token is there")
    break_once(engine)
    with pytest.raises(RuntimeError, match="cannot allocate 4 GB"):
        await asyncio.wait_for(generate(engine, [4, 5, 6], 4), 60)
    assert len(await asyncio.wait_for(generate(engine, [4, 5, 6], 4), 60)) == 4
    await asyncio.wait_for(running, 60)
    assert len(tokens) == 200


async def test_a_scoring_ends_too(engine: LocalEngine) -> None:
    break_once(engine)
    with pytest.raises(RuntimeError, match="cannot allocate 4 GB"):
        await asyncio.wait_for(engine.score(ScoreRequest([1, 2, 3, 4], 2)), 60)
    assert len((await engine.score(ScoreRequest([1, 2, 3, 4], 2))).logprobs) == 2
