"""The engine's API for the learn process, on a private socket.

The Unix socket is in the data folder, and only its owner may open it: no key, no network. Scoring and
generation run at low priority, for any version or the base. New weights arrive by loading and switching
versions. Tokens are passed as ids, never as text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict, replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from openclaw_rl.types import Engine, GenerateRequest, Json, Priority, Weights
from openclaw_rl.types.wire import facts_to_json, generate_from_json, score_from_json, token_to_json

_TOKENS_AT_ONCE = 16


def create_private_app(engine: Engine, gpu_handles: Callable[[], Json | None] = lambda: None) -> Starlette:
    """``gpu_handles``: what another process needs to use the engine's GPU with it."""

    async def score(request: Request) -> JSONResponse:
        asked = score_from_json(await request.json())
        scores = await engine.score(replace(asked, priority=_low(asked.priority)))
        return JSONResponse(asdict(scores))

    async def generate(request: Request) -> StreamingResponse:
        asked = generate_from_json(await request.json())
        low_priority = replace(asked, priority=_low(asked.priority))
        if asked.policy_version not in (None, *engine.status().versions):
            # Checked now: once the stream has started, it could only break off.
            raise ValueError(f"policy version {asked.policy_version} is not loaded")
        return StreamingResponse(_lines(engine, low_priority), media_type="application/x-ndjson")

    async def load(request: Request) -> JSONResponse:
        await engine.load(Weights(**await request.json()))
        return JSONResponse({})

    async def serve_version(request: Request) -> JSONResponse:
        await engine.serve_version(**await request.json())
        return JSONResponse({})

    async def unload(request: Request) -> JSONResponse:
        await engine.unload((await request.json())["version"])
        return JSONResponse({})

    async def status(_: Request) -> JSONResponse:
        return JSONResponse(facts_to_json(engine.capabilities, engine.context_length, engine.status()))

    async def gpu(_: Request) -> JSONResponse:
        """Handles of the base's weights, for a trainer on the same GPU."""
        return JSONResponse(await asyncio.to_thread(gpu_handles))

    async def live(_: Request) -> JSONResponse:
        return JSONResponse(getattr(engine, "num_live", int)())

    async def refused(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    app = Starlette(
        routes=[
            Route("/score", score, methods=["POST"]),
            Route("/generate", generate, methods=["POST"]),
            Route("/load", load, methods=["POST"]),
            Route("/serve_version", serve_version, methods=["POST"]),
            Route("/unload", unload, methods=["POST"]),
            Route("/status", status),
            Route("/gpu", gpu),
            Route("/live", live),
        ]
    )
    app.add_exception_handler(ValueError, refused)
    return app


def _low(priority: Priority) -> Priority:
    """Requests on this socket never take priority over users' requests."""
    return max(Priority.JUDGE, priority)


async def _lines(engine: Engine, request: GenerateRequest) -> AsyncIterator[bytes]:
    """A line per token, several at a time: nobody watches this stream, and every chunk costs."""
    lines = list[bytes]()
    try:
        async with aclosing(engine.generate(request)) as stream:  # type: ignore[type-var]
            async for token in stream:
                lines.append(json.dumps(token_to_json(token)).encode() + b"\n")
                if len(lines) == _TOKENS_AT_ONCE:
                    yield b"".join(lines)
                    lines.clear()
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # A refused request, such as one with too long a prompt, fails however often it is sent.
        failed = {"error": str(error), "refused": isinstance(error, ValueError)}
        lines.append(json.dumps(failed).encode() + b"\n")
    if lines:
        yield b"".join(lines)
