"""The ledger breaks for real (a table is gone); replies go on, and the loss is said."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx

from openclaw_rl.capture.capture import LedgerCapture
from openclaw_rl.capture.recorder import Recorder
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import until

Ask = Callable[..., dict[str, Any]]
URL = "/v1/chat/completions"


@contextmanager
def broken(system: ServingSystem) -> Iterator[None]:
    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(system.config.home / "serve.db", isolation_level=None)) as database:
            database.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("turns", "gone")
    try:
        yield
    finally:
        rename("gone", "turns")


async def test_replies_are_complete_and_the_state_is_degraded(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask, chunks: Any
) -> None:
    with broken(system):
        whole = await asyncio.wait_for(client.post(URL, json=ask()), 60)
        streamed = await asyncio.wait_for(client.post(URL, json=ask(stream=True)), 60)
        ready = await client.get("/readyz")
        status = (await client.get("/v1/status")).json()
        metrics = (await client.get("/metrics")).text
    assert whole.json()["choices"][0]["message"]["content"] == "Hello!"
    assert chunks(streamed.text)[-1] == "[DONE]"
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert status["status"] == "degraded"
    assert status["ledger"]["num_unsaved"] == 2
    assert status["ledger"]["error"]
    assert "openclaw_rl_turns_unsaved 2.0" in metrics


async def test_when_it_comes_back_nothing_is_missing(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    with broken(system):
        ids = [(await client.post(URL, json=ask(f"number {i}"))).json()["id"] for i in range(3)]
    await until(lambda: system.recorder.health().ok, "the ledger is written again")
    for reply_id in ids:
        assert (await client.get(f"/v1/turns/{reply_id}")).status_code == 200
    assert (await client.get("/readyz")).json()["status"] == "ok"
    assert system.recorder.health().num_lost == 0


async def test_a_conversation_is_answered_although_its_session_cannot_be_looked_up(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    with broken(system):
        answer = await client.post(URL, json=ask(messages=history))
    assert answer.status_code == 200
    assert answer.headers["x-session-id"]


async def test_what_does_not_fit_into_the_backlog_is_counted_as_lost(
    client: httpx.AsyncClient, system: ServingSystem, ask: Ask
) -> None:
    await system.recorder.close()
    system.recorder = Recorder(system.ledgers.serve, backlog=1)
    system.gateway.capture = LedgerCapture(system.ledgers.serve, system.recorder)
    with broken(system):
        for _ in range(4):
            assert (await client.post(URL, json=ask())).status_code == 200
        health = (await client.get("/v1/status")).json()["ledger"]
        assert "openclaw_rl_turns_lost 3.0" in (await client.get("/metrics")).text
    assert (health["num_lost"], health["num_unsaved"]) == (3, 1)
