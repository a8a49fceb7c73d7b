"""The HTTP surface: every dialect, and the routes by which people and scripts look in.

Routes only translate. Whatever goes wrong inside a request becomes one JSON error that says
what to do; prompts and keys never reach a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from openclaw_rl.config import ServeConfig
from openclaw_rl.errors import RequestError, or_not_found
from openclaw_rl.scopes import check_scope
from openclaw_rl.serve.answer import add_dialect
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.dashboard import dashboard_routes
from openclaw_rl.serve.dialects import DIALECTS
from openclaw_rl.serve.forget import forget_routes
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.limits import BodyLimit
from openclaw_rl.serve.pages import add_pages
from openclaw_rl.serve.people import people_routes
from openclaw_rl.serve.reactions import reaction_routes
from openclaw_rl.serve.refuse import add_errors
from openclaw_rl.serve.rewards import reward_routes
from openclaw_rl.serve.session_url import SessionUrl
from openclaw_rl.serve.signin import add_signin, limited_to, require_owner
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.serve.whose import own_scope, visible_scope
from openclaw_rl.serve.wishes import wish_routes
from openclaw_rl.types import EVERYONE, Json
from openclaw_rl.users import Users

#: Of an answer's headers, what pages of other origins may read.
_EXPOSED = (
    "x-session-id", "x-request-id", "x-policy-version", "x-schema-relaxed", "x-schema-valid",
    "x-schema-violations",
)  # fmt: skip


def create_app(
    gateway: Gateway,
    keys: KeyRing,
    inspection: Inspection,
    users: Users,
    settings: ServeConfig,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    app = FastAPI(title="OpenClaw-RL", docs_url=None, redoc_url=None, lifespan=lifespan)
    add_errors(app, gateway.metrics)
    app.add_middleware(BodyLimit, max_bytes=settings.max_request_mb << 20)
    signed_in = keys if settings.auth else None
    add_signin(app, signed_in, [*_names(settings.allowed_hosts.lower()), settings.host.lower()])
    add_pages(app)
    for dialect in DIALECTS:
        add_dialect(app.router, gateway, dialect)

    @app.post("/v1/embeddings", tags=["serve"])
    async def embeddings() -> Json:
        raise RequestError(
            "There are no embeddings here: the model is trained to talk. Give your client the base URL of a "
            "server with an embedding model for them.",
            status=404,
            code="unsupported_endpoint",
        )

    @app.get("/v1/models", tags=["serve"])
    async def models(request: Request) -> Json:
        data = [_model(name) for name in await gateway.answerer.models(own_scope(request, gateway))]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": False, **ends}

    @app.get("/v1/models/{name:path}", tags=["serve"])
    async def model(name: str, request: Request) -> Json:
        await gateway.answerer.check_model(name, own_scope(request, gateway))
        return _model(name)

    @app.get("/v1/sessions", tags=["look in"])
    def sessions(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: str | None = None,
        query: Annotated[str | None, Query(max_length=500)] = None,
        rated: Literal["good", "bad"] | None = None,
    ) -> Json:
        return inspection.sessions(limit, after, limited_to(request), query, rated)

    @app.get("/v1/sessions/{session_id:path}", tags=["look in"])
    def session(
        session_id: str,
        request: Request,
        limit: Annotated[int | None, Query(ge=1, le=1000)] = None,
        after: str | None = None,
        text: bool = False,
    ) -> Json:
        found = inspection.session(session_id, limited_to(request), limit, after, text)
        return or_not_found(found, "session", session_id)

    @app.post("/v1/sessions/{session_id:path}/close", tags=["feedback"])
    async def close_session(session_id: str, request: Request) -> Json:
        found = await asyncio.to_thread(
            inspection.session, session_id, limited_to(request), None, None, False
        )
        turns = or_not_found(found, "session", session_id)["turns"]
        if turns:
            await inspection.record_event(turns[-1]["id"], "closed", {})
        return {"id": session_id, "closed": True}

    @app.get("/v1/turns/{turn_id}", tags=["look in"])
    def turn(turn_id: str, request: Request) -> Json:
        return or_not_found(inspection.turn(turn_id, limited_to(request)), "turn", turn_id)

    @app.post("/v1/feedback", tags=["feedback"])
    async def feedback(parsed: Feedback, request: Request) -> Json:
        or_not_found(
            await asyncio.to_thread(inspection.turn, parsed.id, limited_to(request)), "turn", parsed.id
        )
        score = parsed.stated_score()
        await inspection.record_event(
            parsed.id, "feedback", {"score": score, "text": parsed.text, "by": request.state.user}
        )
        return {"id": parsed.id, "score": score}

    @app.post("/v1/flush", tags=["feedback"])
    async def flush(request: Request) -> Json:
        """The owner's reaches all that waits, anybody else's what waits for their own policy."""
        mine = {} if limited_to(request) is None else {"scope": own_scope(request, gateway)}
        await inspection.record_event(None, "flush", mine)
        return {"status": "ok"}

    @app.get("/v1/policies", tags=["look in"])
    def policies(request: Request, scope: str | None = None) -> Json:
        """The owner sees everybody's, unless one is named."""
        everybodys = scope is None and limited_to(request) is None
        return inspection.policies(None if everybodys else visible_scope(request, gateway, scope))

    @app.post("/v1/policies/{version}/promote", tags=["policies"])
    async def promote(version: int, request: Request, scope: str = EVERYONE) -> Json:
        return await _promote(version, scope, request, f"promoted by {request.state.user}")

    @app.post("/v1/policies/rollback", tags=["policies"])
    async def rollback(request: Request, scope: str = EVERYONE) -> Json:
        require_owner(request)
        parent = await asyncio.to_thread(inspection.parent, scope)
        if parent is None:
            raise RequestError("The base is being served; there is no version before it.", status=409)
        return await _promote(parent, scope, request, f"rolled back by {request.state.user}")

    async def _promote(version: int, scope: str, request: Request, why: str) -> Json:
        require_owner(request)
        try:
            return await inspection.promote(version, why, check_scope(scope))
        except (ValueError, OSError) as error:
            raise RequestError(str(error), status=404, code="not_found") from None

    @app.get("/v1/status", tags=["look in"])
    def status(request: Request, scope: str | None = None) -> Json:
        return inspection.status(visible_scope(request, gateway, scope), limited_to(request))

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Json:
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"])
    async def readyz() -> Response:
        can_serve, report = inspection.readiness()
        return JSONResponse(report, status_code=200 if can_serve else 503)

    @app.get("/metrics", tags=["health"])
    async def metrics(request: Request) -> Response:
        require_owner(request)
        content = gateway.metrics.render(inspection.gauges(), inspection.learned)
        return Response(content, media_type="text/plain; version=0.0.4")

    app.include_router(dashboard_routes(inspection, gateway))
    app.include_router(forget_routes(inspection))
    app.include_router(wish_routes(inspection))
    app.include_router(reaction_routes(inspection))
    app.include_router(people_routes(signed_in, users, gateway, inspection))
    app.include_router(reward_routes(inspection, gateway))
    app.add_middleware(SessionUrl)
    if origins := _names(settings.allow_origin):
        # Outermost: a browser asks without a key whether it may send one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
    return app


class Feedback(WellFormed):
    """A person's own word about a reply; it outranks every vote."""

    id: str
    rating: Literal["up", "down"] | None = None
    score: Annotated[float, Field(ge=-1, le=1)] | None = None
    text: Annotated[str, Field(max_length=4000)] | None = None

    def stated_score(self) -> int:
        if self.rating is None and self.score is None:
            raise RequestError(
                "Feedback needs a rating (up or down) or a score from -1 to 1.", param="rating"
            )
        value = self.score if self.score is not None else (1 if self.rating == "up" else -1)
        return (value > 0) - (value < 0)


def _model(name: str) -> Json:
    """In the words of OpenAI and of Anthropic at once; their clients skip what they do not know."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "openclaw-rl"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _names(text: str) -> list[str]:
    """With commas or spaces between them."""
    return text.replace(",", " ").split()
