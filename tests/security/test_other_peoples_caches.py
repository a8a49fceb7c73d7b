"""The time of a reply does not tell how somebody else's prompt begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.testing import tiny_model, until
from openclaw_rl.types import GenerateRequest, SamplingParams, ScoreRequest
from tests.security.conftest import Live, chat

SECRET = list(range(10, 210))


class Counted:
    """A real engine on a small model, and how many tokens it computed."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.num_computed = engine, 0
        scheduler: Any = engine._scheduler
        forward = scheduler._forward

        def counting(batch: Any, chunks: Any) -> Any:
            self.num_computed += sum(count for _, count in batch)
            return forward(batch, chunks)

        scheduler._forward = counting

    async def cost(self, ids: list[int], owner: str | None, num_public: int = 0) -> int:
        """Tokens computed for a reply of one token."""
        await until(lambda: not self.engine.status().num_running, "the engine is idle")
        before = self.num_computed
        request = GenerateRequest(ids, SamplingParams(1, temperature=0), owner=owner, num_public=num_public)
        async for _ in self.engine.generate(request):
            pass
        return self.num_computed - before


def hold(engine: LocalEngine) -> threading.Event:
    """The engine computes nothing until the event is set, so that no request ends before all have come."""
    scheduler: Any = engine._scheduler
    forward, go_on = scheduler._forward, threading.Event()

    def held(batch: Any, chunks: Any) -> Any:
        go_on.wait()
        return forward(batch, chunks)

    scheduler._forward = held
    return go_on


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def counted(model: Path) -> AsyncIterator[Counted]:
    engine = LocalEngine(model, LocalEngineOptions(device="cpu", dtype="fp32", kernel="float"))
    yield Counted(engine)
    await engine.close()


async def test_a_right_guess_costs_as_much_as_a_wrong_one(counted: Counted) -> None:
    await counted.cost(SECRET, "ann")
    right = await counted.cost(SECRET[:150], "ben")
    wrong = await counted.cost([9, *SECRET[1:150]], "ben")
    assert right == wrong == 150
    assert await counted.cost([*SECRET, 7], "ann") < 10, "her own is still there"


async def test_a_system_prompt_and_tools_that_both_have_are_read_once(counted: Counted) -> None:
    await counted.cost(SECRET, "ann", num_public=100)
    assert await counted.cost(SECRET[:150], "ben", num_public=100) == 50
    assert await counted.cost(SECRET[:150], "cid", num_public=120) == 50, "her side counts, too"
    assert await counted.cost(SECRET[:150], "dan", num_public=0) == 150


async def test_what_the_system_works_on_stays_its_owners(counted: Counted) -> None:
    await counted.cost(SECRET, "ann")
    await counted.engine.score(ScoreRequest([*SECRET, 5, 6], start=len(SECRET)))
    assert await counted.cost([*SECRET, 7], "ann") < 10
    assert await counted.cost(SECRET[:150], "ben") == 150


async def test_nobody_waits_for_somebody_elses_prompt(counted: Counted) -> None:
    """Two that begin alike at the same time: the second would wait to copy from the first."""
    await asyncio.gather(counted.cost(SECRET, "ann"), counted.cost(SECRET, "ben"))
    assert counted.num_computed >= 2 * len(SECRET)


async def test_one_persons_queue_is_not_everybodys(model: Path) -> None:
    options = LocalEngineOptions(device="cpu", dtype="fp32", kernel="float", max_running=1)
    engine = LocalEngine(model, options)
    order: list[str] = []
    queue_is_full = hold(engine)

    async def ask(owner: str, number: int) -> None:
        request = GenerateRequest([number + 1] * 50, SamplingParams(20, temperature=0), owner=owner)
        async for _ in engine.generate(request):
            pass
        order.append(owner)

    greedy = [asyncio.create_task(ask("greedy", i)) for i in range(8)]
    await until(lambda: engine.status().num_running + engine.status().num_waiting == 8, "the queue is full")
    other = asyncio.create_task(ask("other", 99))
    await until(
        lambda: engine.status().num_running + engine.status().num_waiting == 9, "the other waits, too"
    )
    queue_is_full.set()
    await asyncio.gather(other, *greedy)
    await engine.close()
    assert order.index("other") < 4


def test_requests_say_whose_they_are(live: Live) -> None:
    key = live.system.keys.add("ann")
    engine: Any = live.system.engine
    system = {"role": "system", "content": "You are a kind helper."}
    user = {"role": "user", "content": "My secret"}
    with live.client(key) as client:
        client.post("/v1/chat/completions", json={"model": "scripted", "messages": [system, user]})
        client.post("/v1/chat/completions", json=chat())
        client.post("/v1/compare", json={"prompt": "x", "versions": [0]})
    first, second, third = engine.requests
    assert [request.owner for request in engine.requests] == ["ann"] * 3
    text = bytes_of(live, first.prompt_ids[: first.num_public])
    assert b"kind helper" in text
    assert b"secret" not in text
    assert (second.num_public, third.num_public) == (0, 0)


def bytes_of(live: Live, ids: list[int]) -> bytes:
    renderer: Any = live.system.gateway.renderer
    return b"".join(renderer.token_bytes(i) for i in ids)


def test_what_is_remembered_of_a_person_is_no_public_part(make_live: Callable[..., Live]) -> None:
    live = make_live(notes="on")
    live.system.memory._hints["default"] = ("answer in French",)
    with live.client() as client:
        client.post("/v1/chat/completions", json=chat())
    engine: Any = live.system.engine
    assert engine.requests[0].num_public == 0


def test_comparisons_keep_their_limit(live: Live) -> None:
    """Forty at once: those beyond the limit are refused, and places come back."""
    engine: Any = live.system.engine
    statuses: list[int] = []

    async def burst() -> None:
        import httpx

        transport = httpx.ASGITransport(live.system.app())
        headers = {"authorization": f"Bearer {live.key}"}
        async with httpx.AsyncClient(transport=transport, base_url=live.url, headers=headers) as client:
            body = {"prompt": "x", "versions": [0]}
            answers = await asyncio.gather(*(client.post("/v1/compare", json=body) for _ in range(40)))
            statuses.extend(answer.status_code for answer in answers)
            assert (await client.post("/v1/compare", json=body)).status_code == 200

    asyncio.run(burst())
    assert 1 <= statuses.count(200) <= 4
    assert statuses.count(429) == 40 - statuses.count(200)
    assert len(engine.requests) == statuses.count(200) + 1
