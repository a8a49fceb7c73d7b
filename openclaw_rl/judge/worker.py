"""Judges turns in the background, with bounded concurrency.

Runs in the learn process. If a judge fails, the turn stays unjudged, with the reason, and is tried again
later; a failure never becomes a neutral verdict and never affects serving.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from openclaw_rl.config import JudgeConfig
from openclaw_rl.errors import where
from openclaw_rl.types import Judge, JudgeCase, JudgeError, Verdict

log = logging.getLogger(__name__)


class JudgeQueue(Protocol):
    """Where cases come from and verdicts go. Methods are synchronous and run in threads."""

    def pull(self) -> None:
        """Read what was captured since the last call."""

    def ready(self, limit: int, now: float) -> list[str]: ...

    def case(self, turn_id: str) -> JudgeCase | None:
        """None if the turn no longer exists."""

    def settle(self, turn_id: str, verdict: Verdict) -> None: ...

    def fail(self, turn_id: str, error: str, now: float) -> None: ...


class JudgeWorker:
    def __init__(
        self, queue: JudgeQueue, judge: Judge, settings: JudgeConfig = JudgeConfig(), poll_s: float = 0.5
    ) -> None:
        self._queue, self._judge, self._settings, self._poll_s = queue, judge, settings, poll_s

    async def run(self) -> None:
        """Run until cancelled; if the database is unavailable, keep trying."""
        while True:
            try:
                worked = await self.step()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.error(
                    "reading or writing the judge queue failed, trying again: %s: %s",
                    type(error).__name__,
                    str(error).partition("\n")[0],
                )
                worked = False
            if not worked:
                await asyncio.sleep(self._poll_s)

    async def step(self) -> bool:
        """Pull, then judge one batch; False when there was nothing to judge."""
        await asyncio.to_thread(self._queue.pull)
        turn_ids = await asyncio.to_thread(self._queue.ready, self._settings.judge_concurrency, time.time())
        await asyncio.gather(*(self._judge_one(turn_id) for turn_id in turn_ids))
        return bool(turn_ids)

    async def _judge_one(self, turn_id: str) -> None:
        try:
            case = await asyncio.to_thread(self._queue.case, turn_id)
            if case is None:
                verdict = Verdict(
                    0, 0.0, "rule:gone", trainable=False, reason="the turn was pruned before it was judged"
                )
            else:
                verdict = await asyncio.wait_for(self._judge.evaluate(case), self._settings.judge_timeout_s)
        except TimeoutError:
            await self._fail(turn_id, f"the judge gave no answer within {self._settings.judge_timeout_s:g} s")
        except (JudgeError, ConnectionError) as error:
            await self._fail(turn_id, str(error) or type(error).__name__)
        except Exception as error:
            # A judge is a plug-in: its exceptions must not stop the worker.
            log.error("the judge failed: %s", where(error))
            await self._fail(turn_id, f"{type(error).__name__}: {error}")
        else:
            await asyncio.to_thread(self._queue.settle, turn_id, verdict)

    async def _fail(self, turn_id: str, error: str) -> None:
        await asyncio.to_thread(self._queue.fail, turn_id, error, time.time())
