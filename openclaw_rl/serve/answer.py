"""Answers a request of any dialect, whole or streamed; every dialect goes through here."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from openclaw_rl.errors import GrammarFailed, RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.dialect import Dialect, WireRequest, Writer, call_of
from openclaw_rl.serve.exchange import Exchange
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.types import Json

log = logging.getLogger(__name__)


def add_dialect(router: APIRouter, gateway: Gateway, dialect: Dialect[Any]) -> None:
    async def ask(parsed: WireRequest, request: Request) -> Response:
        return await answer(gateway, dialect, parsed, request)

    # FastAPI validates against this annotation and shows it in the schema.
    ask.__annotations__["parsed"] = dialect.request
    router.add_api_route(
        dialect.path, ask, methods=["POST"], response_model=None, tags=["generate"], name=dialect.name,
        description=inspect.getdoc(dialect) or "",
    )  # fmt: skip
    dialect.add_routes(router, gateway)


async def answer(gateway: Gateway, dialect: Dialect[Any], parsed: WireRequest, request: Request) -> Response:
    for name in dialect.ignored(parsed):
        gateway.metrics.count_ignored(name)
    call = await call_of(gateway, request)
    waits = not dialect.in_background(parsed)
    internal = await dialect.read(parsed, call)
    opening = asyncio.create_task(gateway.open(internal, dialect.id_prefix, start=waits))
    try:
        exchange = await sse.run_unless_disconnected(request, opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_let_go)
        return sse.Unsent()
    gateway.metrics.requests.labels(dialect.name, "200").inc()
    exchange.on_recorded = partial(dialect.recorded, gateway)
    writer = dialect.writer(exchange, parsed)
    if not waits:
        return JSONResponse(await gateway.background.start(exchange, writer), headers=exchange.headers)
    if parsed.stream:
        return sse.EventStream(_stream(exchange, writer), exchange.headers, exchange.release)
    work = asyncio.create_task(_whole(exchange, writer))
    try:
        reply = await sse.run_unless_disconnected(request, work)
    except asyncio.CancelledError:
        return Response(status_code=499)
    finally:
        exchange.release()
    return JSONResponse(reply, headers=exchange.headers | await exchange.check())


def _let_go(opening: asyncio.Task[Exchange]) -> None:
    """Release an exchange that finished opening just after the client disconnected."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().release()


async def _whole(exchange: Exchange, writer: Writer) -> Json:
    writer.begin()
    async for event in exchange.events():
        writer.add(event)
    writer.finish()
    return writer.whole()


async def _stream(exchange: Exchange, writer: Writer) -> AsyncIterator[bytes]:
    """A failure after the first byte cannot be a status code; the stream ends with an error event instead."""
    try:
        for piece in writer.begin():
            yield piece
        async with aclosing(exchange.events()) as events:  # type: ignore[type-var]
            async for event in events:
                for piece in writer.add(event):
                    yield piece
        # Sent as comments: the headers went out before the first token.
        for name, value in (await exchange.check()).items():
            yield sse.comment(f"{name}: {value}")
        for piece in writer.finish():
            yield piece
    except Exception as error:
        log.error("a reply failed while streaming: %s", type(error).__name__)
        ours = isinstance(error, RequestError | GrammarFailed)
        said = str(error) if ours else "The server failed while answering; try again."
        for piece in writer.fail(said):
            yield piece
