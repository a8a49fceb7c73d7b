"""Replies that are made while nobody is connected. Each holds its place among the requests of its user.

What is running is known to this process, with its writer; the ledger has a row without words, so that a reply
whose process ended is seen to have failed. A complete reply is a turn like any other, and its row goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from openclaw_rl.errors import GrammarFailed, RequestError
from openclaw_rl.serve.exchange import Event, Exchange
from openclaw_rl.types import CANCELLED, FAILED, RUNNING, BackgroundStore, Json, Unfinished

log = logging.getLogger(__name__)
T = TypeVar("T")
_TOUCH_S = 10.0
GONE = "The server was stopped before this reply was finished; ask again."


class Words(Protocol):
    """The part of a Writer that is used here."""

    def add(self, event: Event) -> list[bytes]: ...

    def whole(self) -> Json: ...


@dataclass
class _Run:
    exchange: Exchange
    writer: Words
    task: asyncio.Task[None]


class Background:
    def __init__(self, store: BackgroundStore) -> None:
        self._store = store
        self._runs: dict[str, _Run] = {}

    async def start(self, exchange: Exchange, writer: Words) -> Json:
        """The response as it begins. The exchange is released in any case."""
        try:
            if not exchange.recorded:
                raise RequestError(
                    "A background response has to be stored, so it cannot be off the record.",
                    param="background",
                )
            user, model = exchange.request.user, exchange.source.model
            await _stored(self._store.begin, exchange.id, user, model, exchange.arrived)
        except BaseException:
            exchange.release()
            raise
        task = asyncio.create_task(self._answer(exchange, writer))
        self._runs[exchange.id] = _Run(exchange, writer, task)
        return {**writer.whole(), "status": "queued"}

    async def find(self, response_id: str, user: str) -> Unfinished | Json | None:
        """The response so far, if it runs here; else what is known of one without a complete turn."""
        run = self._run_of(response_id, user)
        if run is not None:
            return run.writer.whole()
        unfinished = await _stored(self._store.find, response_id, user)
        if unfinished is not None and unfinished.status == RUNNING and not unfinished.is_alive:
            await _stored(self._store.stop, response_id, FAILED, GONE)
            return await _stored(self._store.find, response_id, user)
        return unfinished

    async def cancel(self, response_id: str, user: str) -> None:
        """Returns once its place is free; does nothing to one that is over."""
        if await self.find(response_id, user) is None:
            return
        await _stored(self._store.stop, response_id, CANCELLED, None)
        run = self._run_of(response_id, user)
        if run is not None:
            run.task.cancel()
            await asyncio.wait({run.task})
            run.exchange.release()  # it may have ended before it began
            self._runs.pop(response_id, None)

    async def remove(self, response_id: str, user: str) -> bool:
        """Stops it where it runs; False if there is none."""
        if await self.find(response_id, user) is None:
            return False
        await self.cancel(response_id, user)
        await _stored(self._store.remove, response_id)
        return True

    def _run_of(self, response_id: str, user: str) -> _Run | None:
        run = self._runs.get(response_id)
        return run if run is not None and run.exchange.request.user == user else None

    async def _answer(self, exchange: Exchange, writer: Words) -> None:
        touching = asyncio.create_task(self._touch(exchange.id))
        try:
            await exchange.source.start()
            async with aclosing(exchange.events()) as events:  # type: ignore[type-var]
                async for event in events:
                    writer.add(event)
            await self._noted(asyncio.to_thread(self._store.remove, exchange.id))
        except asyncio.CancelledError:
            await self._noted(asyncio.to_thread(self._store.stop, exchange.id, CANCELLED, None))
        except Exception as error:
            log.error("a background reply failed: %s", type(error).__name__)
            ours = isinstance(error, RequestError | GrammarFailed)
            said = str(error) if ours else "The server failed while answering; try again."
            await self._noted(asyncio.to_thread(self._store.stop, exchange.id, FAILED, said))
        finally:
            touching.cancel()
            exchange.release()
            self._runs.pop(exchange.id, None)

    async def _noted(self, writing: Coroutine[None, None, None]) -> None:
        with suppress(Exception):  # the ledger is down; the row is then seen to have failed
            await writing

    async def _touch(self, response_id: str) -> None:
        """Says that it runs; stops it where another gateway was asked to."""
        while True:
            await asyncio.sleep(_TOUCH_S)
            with suppress(Exception):
                if not await asyncio.to_thread(self._store.touch, response_id):
                    self._runs[response_id].task.cancel()


async def _stored(function: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(function, *arguments)
    except Exception as error:
        log.error("background responses cannot be read or written: %s", type(error).__name__)
        raise RequestError(
            "Background responses cannot be read or written now; try again once /readyz says 'ok'.",
            status=503,
            code="not_stored",
            retry_after_s=5,
        ) from None
