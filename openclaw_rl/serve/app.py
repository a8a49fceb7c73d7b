"""The HTTP API: every dialect, and the routes for inspection, feedback and policies.

Routes only translate. Any failure inside a request becomes one JSON error that says what to do;
prompts and keys are never logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware

from openclaw_rl.config import ServeConfig
from openclaw_rl.serve.answer import add_dialect
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.serve.dashboard import dashboard_routes
from openclaw_rl.serve.dialects import DIALECTS
from openclaw_rl.serve.feedback import exclusion_routes, feedback_routes
from openclaw_rl.serve.forget import forget_routes
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.health import health_routes
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.limits import BodyLimit
from openclaw_rl.serve.models import model_routes
from openclaw_rl.serve.pages import add_pages
from openclaw_rl.serve.people import people_routes, wave_routes
from openclaw_rl.serve.policies import policy_routes
from openclaw_rl.serve.reactions import reaction_routes
from openclaw_rl.serve.refuse import add_errors
from openclaw_rl.serve.rewards import environment_routes, reward_routes
from openclaw_rl.serve.session_url import SessionUrl
from openclaw_rl.serve.sessions import session_routes
from openclaw_rl.serve.signin import add_signin
from openclaw_rl.serve.wishes import wish_routes
from openclaw_rl.users import Users

#: Response headers that pages of other origins may read.
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
    ring = keys if settings.auth else None
    add_signin(app, ring, [*_names(settings.allowed_hosts.lower()), settings.host.lower()])
    add_pages(app)
    for dialect in DIALECTS:
        add_dialect(app.router, gateway, dialect)
    for router in _routers(gateway, ring, inspection, users):
        app.include_router(router)
    app.add_middleware(SessionUrl)
    _add_origins(app, _names(settings.allow_origin))
    return app


def _routers(
    gateway: Gateway, keys: KeyRing | None, inspection: Inspection, users: Users
) -> Iterator[APIRouter]:
    yield model_routes(gateway)
    yield session_routes(inspection)
    yield feedback_routes(inspection, gateway)
    yield exclusion_routes(inspection)
    yield policy_routes(inspection, gateway)
    yield health_routes(inspection, gateway)
    yield dashboard_routes(inspection, gateway)
    yield forget_routes(inspection)
    yield wish_routes(inspection)
    yield reaction_routes(inspection)
    yield people_routes(keys, users, gateway, inspection)
    yield wave_routes(inspection)
    yield reward_routes(inspection, gateway)
    yield environment_routes(inspection, gateway)


def _add_origins(app: FastAPI, origins: list[str]) -> None:
    """Pages of these may use the API from a browser."""
    if origins:
        # Outermost: a browser asks without a key whether it may send one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )


def _names(text: str) -> list[str]:
    """Names separated by commas or spaces."""
    return text.replace(",", " ").split()
