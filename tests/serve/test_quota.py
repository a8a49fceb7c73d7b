"""Limits of a person hold, say when to come back, and are nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.errors import RequestError
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve import quota
from openclaw_rl.serve.quota import Quotas
from openclaw_rl.users import Person, Users

DAY = 86400.0
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


class Clock:
    now = 10 * DAY + 5.0

    def __call__(self) -> float:
        return self.now


async def wait_of(quotas: Quotas, user: str = "ann") -> int | None:
    try:
        await quotas.take(user)
    except RequestError as error:
        return error.retry_after_s
    return None


async def test_a_minute_slides() -> None:
    clock = Clock()
    quotas = Quotas(lambda user: Person(requests_per_minute=2), lambda user, since: 0, ticks=clock)
    assert await wait_of(quotas) is None
    clock.now += 20
    assert await wait_of(quotas) is None
    assert await wait_of(quotas) == 40
    assert await wait_of(quotas, "ben") is None, "each has their own"
    clock.now += 40
    assert await wait_of(quotas) is None
    assert await wait_of(quotas) == 20


async def test_a_clock_that_is_set_back_makes_no_minute_longer() -> None:
    clock, ticks = Clock(), Clock()
    quotas = Quotas(lambda user: Person(requests_per_minute=1), lambda user, since: 0, clock, ticks)
    assert await wait_of(quotas) is None
    clock.now -= DAY
    assert await wait_of(quotas) == 60
    ticks.now += 60
    assert await wait_of(quotas) is None


async def test_a_day_begins_anew_and_remembers_what_was_used_before_the_start() -> None:
    clock = Clock()
    asked: list[tuple[str, float]] = []

    def used(user: str, since: float) -> int:
        asked.append((user, since))
        return 90

    quotas = Quotas(lambda user: Person(tokens_per_day=100), used, clock)
    assert await wait_of(quotas) is None
    quotas.add("ann", 10)
    assert await wait_of(quotas) == int(DAY) - 5
    clock.now += DAY
    assert await wait_of(quotas) is None
    assert asked == [("ann", 10 * DAY)]


async def test_a_ledger_that_does_not_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop, the read would delay everybody's tokens."""
    answers = threading.Event()

    def used(user: str, since: float) -> int:
        assert answers.wait(60)
        return 90

    quotas = Quotas(lambda user: Person(tokens_per_day=100), used)
    taking = asyncio.create_task(wait_of(quotas))
    await asyncio.sleep(0)
    answers.set()
    assert await taking is None
    quotas.add("ann", 10)
    assert await wait_of(quotas) is not None
    answers.clear()
    monkeypatch.setattr(quota, "_MAX_WAIT_S", 0.01)
    assert await wait_of(quotas, "ben") is None
    answers.set()


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", CHAT, ("error", "code", "rate_limit_exceeded")),
        ("/v1/messages", CHAT, ("error", "type", "rate_limit_error")),
        ("/v1/responses", {"model": "scripted", "input": "Hi"}, ("error", "code", "rate_limit_exceeded")),
    ],
)
async def test_in_each_dialects_form(
    system: ServingSystem,
    connect: Callable[..., httpx.AsyncClient],
    path: str,
    body: dict[str, Any],
    kind: tuple[str, str, str],
) -> None:
    Users.in_home(system.config.home).change("ann", requests_per_minute=1)
    async with connect(system, system.keys.add("ann")) as ann, connect(system) as owner:
        assert (await ann.post(path, json=body)).status_code == 200
        refused = await ann.post(path, json=body)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        outer, inner, value = kind
        assert refused.json()[outer][inner] == value
        assert (await owner.post(path, json=body)).status_code == 200


async def test_tokens_are_counted_as_used(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    users = Users.in_home(system.config.home)
    users.change("ann", tokens_per_day=10)
    async with connect(system, system.keys.add("ann")) as ann:
        assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await system.gateway.drain()
        assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 429
        users.change("ann", tokens_per_day=None)
        assert (await ann.post("/v1/chat/completions", json=CHAT)).status_code == 200
