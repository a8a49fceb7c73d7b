"""Routes by which scripts and people ask how the server is."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.permissions import visible_scope
from openclaw_rl.serve.signin import limited_to, require_owner
from openclaw_rl.types import Json


def health_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/status", tags=["read"])
    def status(request: Request, scope: str | None = None) -> Json:
        """Counts by state and reason, queues, the last step, health."""
        return inspection.status(visible_scope(request, gateway, scope), limited_to(request))

    @router.get("/healthz", tags=["health"])
    async def healthz() -> Json:
        """The process answers. No key needed."""
        return {"status": "ok"}

    @router.get("/readyz", tags=["health"])
    async def readyz() -> Response:
        """``ok`` or ``degraded``; 503 only if it cannot serve. No key needed."""
        can_serve, report = inspection.readiness()
        return JSONResponse(report, status_code=200 if can_serve else 503)

    @router.get("/metrics", tags=["health"])
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus. Owner only."""
        require_owner(request)
        content = gateway.metrics.render(inspection.gauges(), inspection.learned)
        return Response(content, media_type="text/plain; version=0.0.4")

    return router
