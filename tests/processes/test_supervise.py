"""What keeps the learn process running, and what is said when it cannot."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import pytest

from openclaw_rl.processes.serving import _reported
from openclaw_rl.processes.supervise import Supervisor
from openclaw_rl.testing import skip_time, until


async def test_a_process_that_cannot_be_started_is_tried_again() -> None:
    """Where memory has run out, for a while nothing can be."""
    supervisor = Supervisor(["learn"])
    supervisor._command = ["/nowhere/python"]
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.health.num_restarts == 1, "the first try")
    assert "could not be started" in str(supervisor.health.last_exit)
    supervisor._command = [sys.executable, "-c", "input()"]
    skip_time(60)
    await until(lambda: supervisor.health.num_restarts == 2, "it ran, and ended")
    assert supervisor.health.last_exit == "exit code 1"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_job_that_ends_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("/tmp/x is open to others; remove it")

    await _reported(fails())
    assert "open to others" in caplog.text
