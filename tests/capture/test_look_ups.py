"""When the ledger is asked again after it did not answer."""

from __future__ import annotations

import asyncio
import threading

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import look_ups
from openclaw_rl.capture.look_ups import LookUps


def _fails() -> str:
    raise ConnectionError("the connection was cut")


async def test_a_failure_pauses_and_a_write_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ups, "_SHORTEST_PAUSE_S", 0.0)
    written = 7
    looks = LookUps(60, 3600, lambda: written)
    with pytest.raises(ConnectionError):
        await looks.look(_fails)
    assert looks.are_paused
    written += 1
    assert not looks.are_paused


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (KeyError("content"), False),
        (RecursionError("nested too deeply"), False),
        (sa.exc.DataError("SELECT", {}, ValueError("a NUL")), False),
        (sa.exc.OperationalError("SELECT", {}, ValueError("the server went away")), True),
        (sa.exc.TimeoutError("no connection is free"), True),
    ],
)
async def test_one_requests_own_error_pauses_nobody_elses_reads(error: Exception, pauses: bool) -> None:
    looks = LookUps(60, 3600)

    def fails() -> str:
        raise error

    with pytest.raises(type(error)):
        await looks.look(fails)
    assert looks.are_paused == pauses


async def test_a_read_that_fails_late_says_nothing_about_a_ledger_that_has_answered_since() -> None:
    looks, cut = LookUps(60, 3600), threading.Event()

    def stuck() -> str:
        cut.wait()
        return _fails()

    late = asyncio.create_task(looks.look(stuck))
    await asyncio.sleep(0)
    assert await looks.look(lambda: "here") == "here"
    cut.set()
    with pytest.raises(ConnectionError):
        await late
    assert not looks.are_paused


async def test_a_slow_read_that_succeeds_ends_the_pause() -> None:
    looks, slow = LookUps(0.01, 3600), threading.Event()
    with pytest.raises(TimeoutError):
        await looks.look(slow.wait)
    assert looks.are_paused
    slow.set()
    async with asyncio.timeout(60):
        while looks.are_paused:
            await asyncio.sleep(0.01)
