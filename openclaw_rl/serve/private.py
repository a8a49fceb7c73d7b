"""The engine behind a private socket, for the learn process.

A Unix socket in the data folder that only its owner may open: no key, no network. Scoring and
generation run at low priority, for any version or the base; loading and switching versions is
how new weights arrive. Tokens cross as they are, never as text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from openclaw_rl.types import Engine, GenerateRequest, Priority, SamplingParams, ScoreRequest


def create_private_app(engine: Engine) -> Starlette:
    async def score(request: Request) -> JSONResponse:
        body = await request.json()
        wanted = ScoreRequest(**{**body, "priority": _low(body["priority"])})
        return JSONResponse(asdict(await engine.score(wanted)))

    async def generate(request: Request) -> StreamingResponse:
        body = await request.json()
        wanted = GenerateRequest(
            body["prompt_ids"],
            SamplingParams(**body["sampling"]),
            stop_ids=frozenset(body.get("stop_ids", ())),
            policy_version=body.get("policy_version"),
            priority=_low(body.get("priority", Priority.JUDGE)),
            top_logprobs=body.get("top_logprobs", 8),
            grammar=body.get("grammar"),
        )
        return StreamingResponse(_lines(engine, wanted), media_type="application/x-ndjson")

    async def load(request: Request) -> JSONResponse:
        body = await request.json()
        await engine.load(body["version"], Path(body["path"]))
        return JSONResponse({})

    async def serve_version(request: Request) -> JSONResponse:
        await engine.serve_version((await request.json())["version"])
        return JSONResponse({})

    async def unload(request: Request) -> JSONResponse:
        await engine.unload((await request.json())["version"])
        return JSONResponse({})

    async def status(_: Request) -> JSONResponse:
        return JSONResponse({**asdict(engine.status()), "context_length": engine.context_length})

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
        ]
    )
    app.add_exception_handler(ValueError, refused)
    return app


def _low(priority: int) -> Priority:
    """Whatever comes through this door waits for people."""
    return max(Priority.JUDGE, Priority(priority))


async def _lines(engine: Engine, wanted: GenerateRequest) -> AsyncIterator[bytes]:
    try:
        async with aclosing(engine.generate(wanted)) as stream:  # type: ignore[type-var]
            async for token in stream:
                yield json.dumps(asdict(token)).encode() + b"\n"
    except asyncio.CancelledError:
        raise
    except Exception as error:
        yield json.dumps({"error": str(error)}).encode() + b"\n"
