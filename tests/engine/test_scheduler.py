"""Who runs when: priorities, chunks, limits, cancellation, seeds. A few layers show that as well as all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openclaw_rl.engine.job import Job
from openclaw_rl.engine.kv import CachePool, SequenceCache
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.scheduler import Scheduler
from openclaw_rl.testing import until
from openclaw_rl.types import GenerateRequest, Priority, SamplingParams, ScoreRequest, Weights
from tests.engine.conftest import KERNEL, OPTIONS, TOLERANCE, run_generation, write_adapters


@pytest.fixture
async def engine(shallow_model: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(shallow_model, OPTIONS)
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def adapters(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_adapters(shallow_model, tmp_path_factory.mktemp("adapters"))


async def test_a_long_prompt_does_not_freeze_other_streams(engine: LocalEngine, tokenizer: Any) -> None:
    """While the long prompt is prefilled, the running stream keeps getting tokens."""
    events: list[str] = []

    async def stream() -> None:
        request = GenerateRequest(tokenizer("Once upon a time").input_ids, SamplingParams(60))
        async for _ in engine.generate(request):
            events.append("token")

    async def long_prompt() -> None:
        await until(lambda: len(events) >= 3, "the first tokens are there")
        events.append("arrives")
        await run_generation(engine, tokenizer("An old tale. " * 100).input_ids, max_tokens=1)
        events.append("answered")

    await asyncio.gather(stream(), long_prompt())
    between = events[events.index("arrives") : events.index("answered")]
    assert between.count("token") >= 5


async def test_live_requests_go_before_the_judge(engine: LocalEngine, tokenizer: Any) -> None:
    order: list[str] = []
    judge_prompts = [tokenizer(f"Case {i}. " * 40).input_ids for i in range(4)]

    async def run(name: str, ids: list[int], priority: Priority) -> None:
        await run_generation(engine, ids, max_tokens=8, priority=priority)
        order.append(name)

    judges = [asyncio.create_task(run("judge", ids, Priority.JUDGE)) for ids in judge_prompts]
    await until(lambda: engine.status().num_running > 0, "a judge runs")
    await run("live", tokenizer("Hello there. " * 20).input_ids, Priority.LIVE)
    await asyncio.gather(*judges)
    assert order.index("live") <= 1


@pytest.mark.parametrize(("live", "places"), [(0, 6), (1, 3)])
def test_learning_has_all_places_only_while_nobody_else_runs(live: int, places: int) -> None:
    running = [SimpleNamespace(priority=Priority.LIVE)] * live
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.running, scheduler.max_running = running, 6  # type: ignore[assignment]
    while scheduler._has_place(Priority.JUDGE):
        running.append(SimpleNamespace(priority=Priority.JUDGE))
    assert len(running) - live == places
    assert scheduler._has_place(Priority.LIVE)


def test_learning_comes_in_while_users_wait_for_places() -> None:
    """Users who never stop asking would keep it out for ever."""
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.max_running, scheduler.chunk_tokens = 2, 8
    scheduler._num_admitted, scheduler._admitted = 0, {}
    scheduler.running = [job(Priority.LIVE), job(Priority.LIVE)]
    scheduler.waiting = deque([job(Priority.LIVE), job(Priority.JUDGE), job(Priority.JUDGE)])
    scheduler.pool = CachePool(lambda: SequenceCache(1, 1, 2, torch.device("cpu"), torch.float32), 1000)
    scheduler._admit()
    assert [each.priority for each in scheduler.waiting] == [Priority.LIVE, Priority.JUDGE]


def job(priority: Priority) -> Job:
    return Job([1, 2], 0, None, None, priority, 4, emit=lambda result: None)


async def test_sampling_many_at_once_gives_each_what_it_gets_alone(
    engine: LocalEngine, tokenizer: Any
) -> None:
    """Sixteen rows and more take another path through the head."""
    prompts = [tokenizer(f"{i} apples and pears are").input_ids for i in range(20)]
    together = await asyncio.gather(*(run_generation(engine, ids, max_tokens=3) for ids in prompts))
    for ids, tokens in zip(prompts[:4], together, strict=False):
        scores = await engine.score(ScoreRequest([*ids, *(token.id for token in tokens)], len(ids)))
        assert [token.logprob for token in tokens] == pytest.approx(scores.logprobs, abs=TOLERANCE)


async def test_low_priorities_are_not_starved(engine: LocalEngine, tokenizer: Any) -> None:
    """A judge's request finishes while live requests never stop coming."""
    stop = False

    async def live(i: int) -> None:
        while not stop:
            await run_generation(engine, tokenizer(f"Live {i}").input_ids, max_tokens=4)

    streams = [asyncio.create_task(live(i)) for i in range(2)]
    tokens = await asyncio.wait_for(
        run_generation(engine, tokenizer("A case. ").input_ids, max_tokens=5, priority=Priority.JUDGE), 120
    )
    assert len(tokens) == 5
    stop = True
    await asyncio.gather(*streams)


async def test_a_seed_gives_the_same_reply_in_any_company(engine: LocalEngine, tokenizer: Any) -> None:
    prompt = tokenizer("The best thing about rain is").input_ids
    alone = await run_generation(engine, prompt, seed=7, temperature=0.9, top_p=0.9)
    others = [run_generation(engine, tokenizer(f"Noise {i} ").input_ids) for i in range(3)]
    together, *_ = await asyncio.gather(
        run_generation(engine, prompt, seed=7, temperature=0.9, top_p=0.9), *others
    )
    assert [token.id for token in alone] == [token.id for token in together]
    other_seed = await run_generation(engine, prompt, seed=8, temperature=0.9, top_p=0.9)
    assert [token.id for token in other_seed] != [token.id for token in alone]


async def test_cancelled_requests_leave_at_once(engine: LocalEngine, tokenizer: Any) -> None:
    stream = engine.generate(GenerateRequest(tokenizer("Count: 1, 2").input_ids, SamplingParams(5000)))
    await anext(stream)
    assert engine.status().num_running == 1
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: engine.status().num_running == 0, "nothing runs")


async def test_identical_prompts_are_prefilled_once(engine: LocalEngine, tokenizer: Any) -> None:
    """Choices of one request share the prompt's keys and values."""
    prompt = tokenizer("The same long question for everyone. " * 12).input_ids
    steps_before = engine._scheduler._steps
    await asyncio.gather(*(run_generation(engine, prompt, max_tokens=2, seed=i) for i in range(4)))
    steps = engine._scheduler._steps - steps_before
    assert steps < 2 * (len(prompt) // 24 + 4)


async def test_the_cache_stays_within_its_budget(shallow_model: Path, tokenizer: Any) -> None:
    options = LocalEngineOptions(device="cpu", dtype="fp32", kernel=KERNEL, cache_tokens=1200)
    engine = LocalEngine(shallow_model, options)
    try:
        for i in range(8):
            await run_generation(engine, tokenizer(f"Topic {i}. " * 60).input_ids, max_tokens=2)
            assert engine.status().cached_tokens <= 1200
    finally:
        await engine.close()


async def test_bad_requests_are_refused_with_the_reason(engine: LocalEngine, tokenizer: Any) -> None:
    ids = tokenizer("Hello there").input_ids
    with pytest.raises(ValueError, match="version 9"):
        await run_generation(engine, ids, version=9)
    with pytest.raises(ValueError, match="8192"):
        await run_generation(engine, ids * 5000)
    with pytest.raises(ValueError, match="start"):
        await engine.score(ScoreRequest(ids, 0))
    with pytest.raises(ValueError, match="in use"):
        await engine.unload(0)


async def test_temperature_zero_is_greedy_and_stop_ids_end_the_reply(
    engine: LocalEngine, tokenizer: Any
) -> None:
    prompt = tokenizer("One two three four").input_ids
    tokens = await run_generation(engine, prompt, temperature=0.0, max_tokens=6)
    assert all(token.id == token.top_ids[0] for token in tokens)
    assert tokens[-1].finish_reason == "length"
    stopped = await run_generation(engine, prompt, temperature=0.0, stop_ids=frozenset({tokens[2].id}))
    assert stopped[-1].finish_reason == "stop"
    assert stopped[-1].id == tokens[2].id


async def test_swapping_versions_leaves_running_requests_alone(
    engine: LocalEngine, adapters: dict[int, Path], tokenizer: Any
) -> None:
    prompt = tokenizer("A story about a swap.").input_ids
    stream = engine.generate(GenerateRequest(prompt, SamplingParams(20)))
    first = await anext(stream)
    await engine.load(Weights.in_folder(1, adapters[1]))
    await engine.serve_version(1)
    rest = [token async for token in stream]
    assert {token.policy_version for token in [first, *rest]} == {0}
    assert (await run_generation(engine, prompt, version=None))[0].policy_version == 1
