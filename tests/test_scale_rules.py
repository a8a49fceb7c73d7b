"""The simulated replica of ``bench/scale_model.py`` beside the engine's own scheduler, on a made-up clock.

The scheduler runs requests that arrive at random on a network that computes nothing and lets as much time
pass as the model says. Then every first and last token must come at the same moment in both.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.scale_model import MAX_RUNNING, MOST_STEP_S, Engine, Request, serve
from openclaw_rl.engine.job import Job
from openclaw_rl.engine.kv import CachePool, SequenceCache
from openclaw_rl.engine.lora import Adapter
from openclaw_rl.engine.model import Chunk, Network
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.engine.scheduler import Scheduler
from openclaw_rl.engine.threads import ThreadTuner
from openclaw_rl.types import GenerateRequest, Priority, SamplingParams, Scores, Token

#: About what the default model costs on two cores.
COSTS = Engine(
    0.005, 0.0012, 7e-4, MAX_RUNNING, attend_s=4e-7, context_s=1.5e-6, prompt_s=0.004, outside_s=0.01
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedNetwork:
    """Computes nothing, and takes the time that the model says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        streams = [chunk.cache.length for chunk in chunks if len(chunk.token_ids) == 1]
        prompts = [chunk for chunk in chunks if len(chunk.token_ids) > 1]
        begins = sum(chunk.cache.length for chunk in prompts)
        ends = begins + sum(len(chunk.token_ids) for chunk in prompts)
        self._clock.now += COSTS.step_s(len(streams), sum(streams), begins, ends)
        for chunk in chunks:
            chunk.cache.reserve(chunk.cache.length + len(chunk.token_ids))
            chunk.cache.extend(chunk.token_ids)
        return torch.zeros(sum(chunk.num_logits for chunk in chunks), 16)

    def new_cache(self) -> SequenceCache:
        return SequenceCache(1, 1, 1, torch.device("cpu"), torch.float32)

    def up_to(self, layer: int) -> Network | None:
        return None

    def read_adapter(self, path: Path) -> Adapter:
        raise NotImplementedError

    def forget(self, adapter: Adapter) -> None:
        pass


def run_scheduler(requests: Sequence[Request], clock: Clock) -> None:
    """Sets each request's times, as the engine's thread would."""
    network = TimedNetwork(clock)
    scheduler = Scheduler(
        network, CachePool(network.new_cache, 1 << 20, 0), max_running=MAX_RUNNING, chunk_tokens=COSTS.chunk,
        idle_chunk_tokens=2 * COSTS.chunk, max_step_s=MOST_STEP_S, tuner=ThreadTuner(1, lambda number: None),
    )  # fmt: skip
    coming = deque(sorted(requests, key=lambda request: request.at))
    while coming or scheduler.has_work():
        if not scheduler.has_work():
            clock.now = max(clock.now, coming[0].at + COSTS.outside_s)
        while coming and coming[0].at + COSTS.outside_s <= clock.now:
            scheduler.add(_job(coming.popleft(), clock))
        scheduler.step()


def _job(request: Request, clock: Clock) -> Job:
    def emit(item: Token | Scores | Exception) -> None:
        assert isinstance(item, Token)
        request.first, request.end = request.first or clock.now, clock.now

    sampling = SamplingParams(max_tokens=request.reply)
    ids = [id(request)] * request.prompt  # nobody shares a prefix
    return Job(
        ids, 0, None, None, Priority.LIVE, request.prompt + request.reply, emit,
        request=GenerateRequest(ids, sampling), sampler=Sampler(sampling),
    )  # fmt: skip


def arrivals(rate: float, number: int, seed: int) -> list[Request]:
    chance, now, found = random.Random(seed), 0.0, []
    for _ in range(number):
        now += chance.expovariate(rate)
        found.append(Request(now, chance.choice((60, 150, 1500)), chance.randint(1, 100)))
    return found


@pytest.mark.parametrize("rate", [0.8, 4.0])
def test_the_model_of_the_engine_follows_the_scheduler(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    make = partial(arrivals, rate, 40, seed=0)
    real, modelled = make(), make()
    run_scheduler(real, clock)
    serve(COSTS, modelled)
    assert [(r.first, r.end) for r in modelled] == [pytest.approx((r.first, r.end), rel=1e-6) for r in real]
